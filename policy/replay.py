"""Folds a recorded trace through the policy again, under the same or other numbers.

The same fold runs in the policy actor, in notebooks and in tests; a trace is JSON, one message a line.
"""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from messages.policy import Message, PolicySnapshot, Verdict
from policy.cluster import Cluster
from policy.config import PolicyConfig
from policy.fold import apply
from policy.report import snapshot
from policy.states import Settled, uncovered
from policy.switches import Switches


class Step(Struct, frozen=True):
    """One message and the value after it."""

    message: Message
    cluster: Cluster

    @property
    def snapshot(self) -> PolicySnapshot:
        """What would have been published."""
        return snapshot(self.cluster, self.cluster.version)


class VerdictChange(Struct, frozen=True):
    """A verdict reached during a replay; `speedup` is the one it rests on, if the estimator has one."""

    at_s: float
    key: str
    verdict: Verdict
    speedup: float | None


def encode(trace: Iterable[Message]) -> bytes:
    """The trace as JSON lines."""
    return msgspec.json.Encoder().encode_lines(list(trace))


def decode(lines: bytes) -> list[Message]:
    """The messages of a trace; raises msgspec.ValidationError on what is none."""
    return msgspec.json.Decoder(Message).decode_lines(lines)


def steps(
    trace: Iterable[Message], config: PolicyConfig | None = None, switches: Switches | None = None
) -> Iterator[Step]:
    """Every message with the value after it, starting from nothing measured."""
    cluster = Cluster(config=config or PolicyConfig(), switches=switches or Switches())
    for message in trace:
        # A trace leaves out the renewals that keep leases alive.
        cluster = apply(cluster, message)
        yield Step(message, cluster)


def verdict_changes(
    trace: Iterable[Message], config: PolicyConfig | None = None, switches: Switches | None = None
) -> list[VerdictChange]:
    """The verdicts a trace leads to, in the order they were reached."""
    changes: list[VerdictChange] = []
    in_force: dict[str, Settled] = {}
    for step in steps(trace, config, switches):
        for key, entry in step.cluster.entries.items():
            state = uncovered(entry.state)
            if isinstance(state, Settled) and _differs(in_force.get(key), state):
                in_force[key] = state
                paired = state.figures.paired
                speedup = state.figures.original_speedup if paired is None else paired.speedup
                changes.append(VerdictChange(state.settled_at, key, state.verdict, speedup))
    return changes


def _differs(old: Settled | None, new: Settled) -> bool:
    return old is None or (old.verdict, old.settled_at) != (new.verdict, new.settled_at)
