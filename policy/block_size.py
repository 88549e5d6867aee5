"""Which block size the measurements favour: acceptance per position against the cost of a wider verify."""

from itertools import pairwise

from messages.policy import VerifyCost

MIN_BLOCK_SIZE = 2
# A wider or narrower block must promise this much before a new profile is worth its price.
MIN_GAIN = 1.02


def expected_emitted(rates: tuple[float, ...], block_size: int) -> float:
    """Mean tokens a round of `block_size` rows emits: 1 + the chance of keeping each of its drafts.

    `rates[i]` is the fraction of rounds that kept draft i. Positions never measured continue with the last
    conditional acceptance.
    """
    kept = list(rates[: block_size - 1])
    ratio = _last_conditional(rates)
    while len(kept) < block_size - 1:
        kept.append((kept[-1] if kept else 1.0) * ratio)
    return 1.0 + sum(kept)


def verify_ms(curve: tuple[VerifyCost, ...], rows: int) -> float | None:
    """The curve at `rows`, linear between its points; None outside of it."""
    for left, right in pairwise(curve):
        if left.rows <= rows <= right.rows and left.rows < right.rows:
            return left.ms + (right.ms - left.ms) * (rows - left.rows) / (right.rows - left.rows)
    exact = [point.ms for point in curve if point.rows == rows]
    return exact[0] if exact else None


def recommend(
    current: int, rates: tuple[float, ...], curve: tuple[VerifyCost, ...], draft_step_ms: float | None
) -> int | None:
    """The K with the most emitted tokens per ms, or `current` when none is better by more than the margin.

    None where acceptance or cost is unknown.
    """
    if not rates or draft_step_ms is None:
        return None
    speeds = {
        rows: expected_emitted(rates, rows) / cost
        for rows in range(MIN_BLOCK_SIZE, max((point.rows for point in curve), default=0) + 1)
        if (cost := _round_ms(curve, rows, draft_step_ms)) is not None
    }
    if current not in speeds:
        return None
    best = max(speeds, key=lambda rows: (speeds[rows], -rows))
    return best if speeds[best] >= MIN_GAIN * speeds[current] else current


def _round_ms(curve: tuple[VerifyCost, ...], rows: int, draft_step_ms: float) -> float | None:
    verify = verify_ms(curve, rows)
    if verify is None or verify <= 0 or draft_step_ms < 0:
        return None
    return verify + (rows - 1) * draft_step_ms


def _last_conditional(rates: tuple[float, ...]) -> float:
    before = rates[-2] if len(rates) > 1 else 1.0
    return min(rates[-1] / before, 1.0) if rates and before > 0 else 0.0
