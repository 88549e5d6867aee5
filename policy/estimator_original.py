"""The original estimators: speed-up from component times, with fixed thresholds and a static dead band.

Kept selectable and shown beside the paired estimator. They see no wall time per token and no uncertainty.
"""

import math
import statistics
from typing import Literal

from msgspec import Struct

from messages.policy import Verdict
from policy.evidence import Evidence, totals

Zone = Literal["enable", "decline", "dead_band", "no_estimate"]


class RoundProfile(Struct, frozen=True, kw_only=True):
    """Means per round: accepted drafts and component times in ms; `classic_step_ms` None without a probe."""

    accepted_len: float
    drafter_ms: float
    verify_ms: float
    overhead_ms: float = 0.0
    classic_step_ms: float | None = None


def round_profile(evidence: Evidence) -> RoundProfile | None:
    """Aggregate per round, so that a long request weighs more; None without rounds.

    The classic step is the median of the probe means: a first burst that compiles kernels must not move it.
    """
    rounds = totals(evidence.samples).rounds
    if not rounds:
        return None
    samples = evidence.samples
    return RoundProfile(
        accepted_len=sum(sample.accepted for sample in samples) / rounds,
        drafter_ms=sum(sample.draft_ms for sample in samples) / rounds,
        verify_ms=sum(sample.verify_ms for sample in samples) / rounds,
        overhead_ms=sum(sample.overhead_ms for sample in samples) / rounds,
        classic_step_ms=statistics.median(evidence.probe_means) if evidence.probe_means else None,
    )


def fallback_multiplier(is_apple: bool, block_size: int) -> float:
    """Assumed cost of a K-row verify in single steps: 1 on Apple silicon, sqrt(K) elsewhere."""
    return 1.0 if is_apple else math.sqrt(max(block_size, 1))


def measured(profile: RoundProfile) -> float | None:
    """(L + 1) * classic step / (verify + drafter + overhead), None where that has no meaning."""
    if profile.classic_step_ms is None:
        return None
    round_cost = profile.verify_ms + profile.drafter_ms + profile.overhead_ms
    if not _is_usable(profile) or not _positive(round_cost) or not _positive(profile.classic_step_ms):
        return None
    return _finite((profile.accepted_len + 1) * profile.classic_step_ms / round_cost)


def upper_bound(profile: RoundProfile, multiplier: float = 1.0) -> float | None:
    """(L + 1) / (m * (1 + drafter / verify)): an upper bound at m = 1, where verify costs one step."""
    if not _is_usable(profile) or not _positive(profile.verify_ms) or not _positive(multiplier):
        return None
    return _finite((profile.accepted_len + 1) / (multiplier * (1 + profile.drafter_ms / profile.verify_ms)))


def measured_or_fallback(profile: RoundProfile, multiplier: float) -> float | None:
    """The measured form; without any probe the bound with the assumed verify cost."""
    if profile.classic_step_ms is None:
        return upper_bound(profile, multiplier)
    return measured(profile)


def zone(speedup: float | None, *, decline_threshold: float, enable_threshold: float) -> Zone:
    """Which side of the thresholds (both inclusive, decline tested first) the estimate lies on."""
    if speedup is None:
        return "no_estimate"
    if speedup <= decline_threshold:
        return "decline"
    return "enable" if speedup >= enable_threshold else "dead_band"


def resolve(where: Zone, static_default: bool) -> Verdict:
    """The verdict of a zone; between the thresholds and without an estimate the static default decides."""
    if where in {"enable", "decline"}:
        return "enable" if where == "enable" else "decline"
    return "enable" if static_default else "decline"


def _is_usable(profile: RoundProfile) -> bool:
    return _not_negative(profile.accepted_len) and _not_negative(profile.drafter_ms)


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _not_negative(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
