"""The states of one pairing's policy as a tagged union; every state carries just its own data."""

from msgspec import Struct

from messages.policy import ClassReport, Source, UnavailableReason, Verdict
from policy.estimator_original import RoundProfile
from policy.estimator_paired import Estimate
from policy.evidence import Evidence


class Figures(Struct, frozen=True, kw_only=True):
    """What the measurements say: both estimators' answers, means per round, the fraction of rounds
    that kept each draft, and the same apart by kind of request."""

    rounds: int = 0
    paired: Estimate | None = None
    positions: tuple[float, ...] = ()
    per_round: RoundProfile | None = None
    original_speedup: float | None = None
    original_verdict: Verdict | None = None
    classes: tuple[ClassReport, ...] = ()


class Unavailable(Struct, frozen=True, tag=True):
    """No policy is running. While the exactness probe is pending, `under` is what it will uncover."""

    reason: UnavailableReason
    under: "State | None" = None


class Forced(Struct, frozen=True, tag=True):
    """The operator pinned the burst; nothing is measured, read or written."""

    enabled: bool


class Profiling(Struct, frozen=True, tag=True):
    """Measuring. `reopened` is the earlier verdict that evidence contradicted, None on a first profile."""

    evidence: Evidence = Evidence()
    reopened: Verdict | None = None


class Settled(Struct, frozen=True, tag=True, kw_only=True):
    """A verdict is in force.

    `watch` holds the newest samples taken since and `watched` counts all of them; they lean against the
    verdict if `doubted`, and `agreed` counts how many in a row did not.
    """

    verdict: Verdict
    acceptance_rate: float
    samples: int
    source: Source
    settled_at: float
    figures: Figures
    watch: Evidence = Evidence()
    watched: int = 0
    doubted: bool = False
    agreed: int = 0


class ExactnessDeclined(Struct, frozen=True, tag=True):
    """Block and chain differ on this hardware, so MTP never runs; `under` is kept for a later exact load."""

    detail: str | None
    under: "State"


State = Unavailable | Forced | Profiling | Settled | ExactnessDeclined


def uncovered(state: State) -> State:
    """The state below an exactness veto or a pending probe, or `state` itself."""
    if isinstance(state, ExactnessDeclined):
        return state.under
    if isinstance(state, Unavailable) and state.under is not None:
        return state.under
    return state
