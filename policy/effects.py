"""What a change of the cluster's value asks of the shell around it: things to store, things to tell."""

from msgspec import Struct

from policy.cluster import Cluster, Entry, rules_of
from policy.hint import Hint, StoredProfile, hint_of, profile_of
from policy.states import Profiling, Settled, uncovered


class Restored(Struct, frozen=True, tag=True):
    """A verdict came back from the store."""

    key: str
    hint: Hint


class VerdictReached(Struct, frozen=True, tag=True):
    """Measurement has settled; `hint` is to be stored before anyone hears of it."""

    key: str
    hint: Hint


class ProfileGrew(Struct, frozen=True, tag=True):
    """A first profile holds more than before; storing it lets a restart resume."""

    key: str
    profile: StoredProfile


class Reopened(Struct, frozen=True, tag=True):
    """Evidence contradicts the stored verdict; it stays stored until another one is reached."""

    key: str
    hint: Hint


Effect = Restored | VerdictReached | ProfileGrew | Reopened


def effects(before: Cluster, after: Cluster) -> tuple[Effect, ...]:
    """The effects of going from one value to the next, at most one per pairing."""
    found = (
        _effect(after, key, before.entries.get(key), entry)
        for key, entry in after.entries.items()
        if before.entries.get(key) is not entry
    )
    return tuple(effect for effect in found if effect is not None)


def _effect(cluster: Cluster, key: str, before: Entry | None, after: Entry) -> Effect | None:
    old = None if before is None else uncovered(before.state)
    new = uncovered(after.state)
    rules = rules_of(cluster, after)
    if isinstance(new, Settled) and not isinstance(old, Settled):
        hint = hint_of(rules, new)
        return VerdictReached(key, hint) if new.source == "measured" else Restored(key, hint)
    if isinstance(new, Profiling) and new.reopened is not None and isinstance(old, Settled):
        return Reopened(key, hint_of(rules, old))
    if isinstance(new, Profiling) and new.reopened is None and _grew(old, new):
        return ProfileGrew(key, profile_of(after.dispatch, new.evidence))
    return None


def _grew(old: object, new: Profiling) -> bool:
    return isinstance(old, Profiling) and len(new.evidence.samples) > len(old.evidence.samples)
