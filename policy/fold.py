"""How messages change the cluster's value: attaching, leases, samples, counters, exactness."""

import msgspec

from messages.policy import (
    Attach,
    Detach,
    ExactnessFound,
    Hardware,
    Message,
    MtpDispatch,
    Renew,
    Sample,
)
from messages.scheduling import ModelName
from policy import machine
from policy.cluster import (
    Cluster,
    Entry,
    Replica,
    counts_of,
    exactness_of,
    is_attached,
    key_of,
    replicas_of,
    rules_of,
)
from policy.evidence import qualifies
from policy.key import stem
from policy.machine import NOTHING, Opened, Remembered
from policy.states import Profiling
from policy.tallies import plus

replace = msgspec.structs.replace


def observe(cluster: Cluster, message: Message, remembered: Remembered = NOTHING) -> Cluster:
    """The cluster after a message, leases that ran out by then included.

    `remembered` is what the store holds for an attaching pairing.
    """
    return apply(expire(cluster, message.at_s), message, remembered)


def apply(cluster: Cluster, message: Message, remembered: Remembered = NOTHING) -> Cluster:
    """The cluster after a message alone; one of a replica that is not attached changes nothing."""
    if isinstance(message, Attach):
        after = _attach(cluster, message, remembered)
    elif is_attached(cluster, message):
        after = _report(cluster, message)
    else:
        return cluster
    return replace(after, version=cluster.version + 1)


def expire(cluster: Cluster, at_s: float) -> Cluster:
    """The cluster without the replicas whose lease has run out at `at_s`."""
    lease_s = cluster.config.lease_s
    stale = [name for name, replica in cluster.replicas.items() if at_s - replica.seen_at_s > lease_s]
    for name in stale:
        cluster = _remove(cluster, name)
    return replace(cluster, version=cluster.version + 1) if stale else cluster


def forget(cluster: Cluster, key: str) -> Cluster:
    """The cluster with one pairing starting over, as if never measured."""
    entry = cluster.entries.get(key)
    if entry is None:
        return cluster
    state = machine.observe(rules_of(cluster, entry), entry.state, Opened())
    after = _with_entry(cluster, key, replace(entry, state=state))
    return replace(after, version=after.version + 1)


def _attach(cluster: Cluster, message: Attach, remembered: Remembered) -> Cluster:
    before = cluster.replicas.get(message.model)
    if before is not None and before.incarnation != message.incarnation:
        cluster, before = _remove(cluster, message.model), None
    elif before is not None and before.key != key_of(message.dispatch):
        cluster, before = _remove(cluster, message.model), replace(before, counted_before=before.counted)
    replica = Replica(
        incarnation=message.incarnation,
        hardware=message.hardware,
        dispatch=message.dispatch,
        exactness=message.exactness,
        seen_at_s=message.at_s,
    )
    if before is not None:
        replica = replace(replica, counted=before.counted, counted_before=before.counted_before)
    cluster = _with_replica(cluster, message.model, replica)
    cluster = replace(cluster, last_hardware=message.hardware)
    if isinstance(message.dispatch, MtpDispatch):
        return _open(cluster, message.dispatch, message.hardware, remembered)
    return cluster


def _open(cluster: Cluster, dispatch: MtpDispatch, hardware: Hardware, remembered: Remembered) -> Cluster:
    key = stem(dispatch.pairing, dispatch.fingerprint)
    known = cluster.entries.get(key)
    entry = replace(
        known or Entry(dispatch=dispatch, hardware=hardware), dispatch=dispatch, hardware=hardware
    )
    if known is None:
        state = machine.observe(rules_of(cluster, entry), entry.state, Opened(remembered))
        entry = replace(entry, state=state)
    return _reassess(_with_entry(cluster, key, entry), key)


def _report(cluster: Cluster, message: Renew | ExactnessFound | Sample | Detach) -> Cluster:
    replica = replace(cluster.replicas[message.model], seen_at_s=message.at_s)
    match message:
        case Detach():
            return _remove(cluster, message.model)
        case ExactnessFound(exactness=exactness):
            replica = replace(replica, exactness=exactness)
            return _reassess(_with_replica(cluster, message.model, replica), replica.key)
        case Renew() | Sample():
            # The counters are cumulative and reports may overtake each other.
            if message.counts.attempts >= replica.counted.attempts:
                replica = replace(replica, counted=message.counts)
            cluster = _with_replica(cluster, message.model, replica)
            return _progress(cluster, replica.key, message if isinstance(message, Sample) else None)


def _is_of(entry: Entry, sample: Sample) -> bool:
    """Whether the sample was drafted at the pairing's block size; one begun before a change of K was not."""
    return len(sample.accepted_per_position) == entry.dispatch.pairing.block_size - 1


def _progress(cluster: Cluster, key: str | None, sample: Sample | None) -> Cluster:
    """Fold a sample into its pairing and keep the books on whether anything gets through."""
    if key is None:
        return cluster
    entry = cluster.entries[key]
    total = counts_of(cluster, key)
    ran = not isinstance(entry.state, Profiling) and total.bursts > entry.baseline.bursts
    if sample is not None and _is_of(entry, sample):
        state = machine.observe(rules_of(cluster, entry), entry.state, sample)
        qualifying = qualifies(cluster.config, sample)
        ran = ran or qualifying
        # A request that ended before its first round was declined, and is among the counts already.
        has_run = sample.rounds > 0 or bool(sample.slices)
        too_short = entry.too_short + (has_run and not qualifying and not sample.cancelled)
        entry = replace(entry, state=state, too_short=too_short)
    if ran:
        entry = replace(entry, baseline=total, too_short=0)
    return _with_entry(cluster, key, entry)


def _remove(cluster: Cluster, name: ModelName) -> Cluster:
    gone = cluster.replicas[name]
    kept = {other: replica for other, replica in cluster.replicas.items() if other != name}
    cluster = replace(cluster, replicas=kept)
    if gone.key is None:
        return cluster
    entry = cluster.entries[gone.key]
    entry = replace(entry, departed=plus(entry.departed, gone.counts))
    return _reassess(_with_entry(cluster, gone.key, entry), gone.key)


def _reassess(cluster: Cluster, key: str | None) -> Cluster:
    """Apply to a pairing what its live replicas together say about exactness."""
    live = replicas_of(cluster, key)
    if key is None or not live:
        return cluster
    entry = cluster.entries[key]
    state = machine.observe(rules_of(cluster, entry), entry.state, exactness_of(live))
    return _with_entry(cluster, key, replace(entry, state=state))


def _with_replica(cluster: Cluster, name: ModelName, replica: Replica) -> Cluster:
    return replace(cluster, replicas={**cluster.replicas, name: replica})


def _with_entry(cluster: Cluster, key: str, entry: Entry) -> Cluster:
    return replace(cluster, entries={**cluster.entries, key: entry})
