"""The whole policy of a cluster as one value: live replicas, and pairings with their states.

Replicas of one pairing share its state, so their evidence merges. Asks and answers; how messages change the
value is in `policy.fold`.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from messages.policy import (
    Attach,
    Counts,
    Dispatch,
    Exactness,
    Gate,
    GateReply,
    Hardware,
    Message,
    MtpDispatch,
    NotAttached,
)
from messages.scheduling import ModelName
from policy import gates
from policy.config import PolicyConfig
from policy.key import stem
from policy.machine import NOT_READY
from policy.resizing import wanted
from policy.rules import Rules
from policy.states import State
from policy.switches import Switches
from policy.tallies import minus, plus


class Replica(Struct, frozen=True, kw_only=True):
    """A live model replica; `counted` is its latest reading, `counted_before` the one at its attachment."""

    incarnation: str
    hardware: Hardware
    dispatch: Dispatch
    exactness: Exactness
    seen_at_s: float
    counted_before: Counts = Counts()
    counted: Counts = Counts()

    @property
    def key(self) -> str | None:
        """Key of its pairing, None without MTP."""
        return key_of(self.dispatch)

    @property
    def counts(self) -> Counts:
        """What it counted for its present pairing."""
        return minus(self.counted, self.counted_before)


class Entry(Struct, frozen=True, kw_only=True):
    """One pairing.

    `departed` was counted by replicas that left. `baseline` is the count at the last progress, and
    `too_short` the requests since then whose burst was too small to count.
    """

    dispatch: MtpDispatch
    hardware: Hardware
    state: State = NOT_READY
    departed: Counts = Counts()
    baseline: Counts = Counts()
    too_short: int = 0


class Cluster(Struct, frozen=True, kw_only=True):
    """Everything the policy knows; `version` rises with every change."""

    config: PolicyConfig
    switches: Switches
    version: int = 0
    replicas: dict[ModelName, Replica] = {}
    entries: dict[str, Entry] = {}
    last_hardware: Hardware | None = None


def key_of(dispatch: Dispatch) -> str | None:
    """The key a dispatch is held under, None without MTP."""
    return stem(dispatch.pairing, dispatch.fingerprint) if isinstance(dispatch, MtpDispatch) else None


def rules_of(cluster: Cluster, entry: Entry) -> Rules:
    """The fixed facts for decisions about a pairing."""
    return Rules(config=cluster.config, switches=cluster.switches, dispatch=entry.dispatch)


def is_attached(cluster: Cluster, message: Message) -> bool:
    """Whether the sender is the replica the cluster knows under that name."""
    replica = cluster.replicas.get(message.model)
    return replica is not None and replica.incarnation == message.incarnation


def reply(cluster: Cluster, message: Message) -> GateReply:
    """The answer to a message that has been folded."""
    if not is_attached(cluster, message):
        return NotAttached(message.model, message.incarnation)
    return gate_of(cluster, message.model)


def gate_of(cluster: Cluster, model: ModelName) -> Gate:
    """The gate of one attached replica: its pairing's, closed while its own kernels are not known exact."""
    replica = cluster.replicas[model]
    if replica.key is None or not _may_speculate(cluster.switches, replica.exactness):
        return Gate(version=cluster.version)
    entry = cluster.entries[replica.key]
    gate = gates.gate(rules_of(cluster, entry), entry.state, cluster.version)
    return msgspec.structs.replace(
        gate,
        block_size=entry.dispatch.pairing.block_size,
        recommended_block_size=wanted(cluster, entry),
    )


def dispatch_to_load(cluster: Cluster, message: Attach) -> MtpDispatch | None:
    """The dispatch whose memory is to be loaded before `message` is folded.

    None if the pairing is known already, or if a pin or a disabled policy makes reading pointless.
    """
    known = key_of(message.dispatch) in cluster.entries
    measures = cluster.switches.adaptive and cluster.switches.pin is None
    return message.dispatch if isinstance(message.dispatch, MtpDispatch) and measures and not known else None


def replicas_of(cluster: Cluster, key: str | None) -> list[Replica]:
    """Live replicas of a pairing (or, for None, those without MTP), ordered by name."""
    return [replica for _, replica in sorted(cluster.replicas.items()) if replica.key == key]


def counts_of(cluster: Cluster, key: str) -> Counts:
    """Everything counted for a pairing as far back as the cluster goes."""
    total = cluster.entries[key].departed
    for replica in replicas_of(cluster, key):
        total = plus(total, replica.counts)
    return total


def exactness_of(replicas: Iterable[Replica]) -> Exactness:
    """What holds for a pairing: one mismatch vetoes it; a pending probe matters while no other has passed."""
    found = [replica.exactness for replica in replicas]
    for exact in (False, True):
        for exactness in found:
            if exactness.exact is exact:
                return exactness
    return found[0] if found else Exactness()


def _may_speculate(switches: Switches, exactness: Exactness) -> bool:
    return exactness.exact is True or (exactness.exact is False and switches.allow_inexact)
