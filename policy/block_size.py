"""Which block size the measurements favour: acceptance per position against the cost of a round.

Sizes that have been served compare by their measured speed-ups, others by what the cost curve predicts.
"""

from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct

from messages.policy import VerifyCost

MIN_BLOCK_SIZE = 2
# A size that was never served must promise this much before a profile of its own is worth its price.
MIN_PREDICTED_GAIN = 1.05
# Between two measured sizes; changing back would need it the other way round.
MIN_MEASURED_GAIN = 1.02


class RoundCosts(Struct, frozen=True, kw_only=True):
    """What a round costs in ms: verifying by rows, drafting one token, and the rest whatever the size."""

    verify: tuple[VerifyCost, ...]
    draft_step_ms: float | None
    overhead_ms: float = 0.0

    def of(self, rows: int) -> float | None:
        """A round of `rows` rows, None where the curve does not reach or a cost makes no sense."""
        verify = verify_ms(self.verify, rows)
        if verify is None or verify <= 0 or self.draft_step_ms is None or self.draft_step_ms < 0:
            return None
        return verify + (rows - 1) * self.draft_step_ms + max(self.overhead_ms, 0.0)


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


def predicted(current: int, rates: tuple[float, ...], costs: RoundCosts) -> dict[int, float]:
    """Tokens per ms of every size on the curve over those of `current`; empty where that is unknown."""
    if not rates:
        return {}
    widest = max((point.rows for point in costs.verify), default=0)
    speeds = {
        rows: expected_emitted(rates, rows) / cost
        for rows in range(MIN_BLOCK_SIZE, widest + 1)
        if (cost := costs.of(rows)) is not None
    }
    if current not in speeds:
        return {}
    return {rows: speed / speeds[current] for rows, speed in speeds.items()}


def recommend(
    current: int,
    rates: tuple[float, ...],
    costs: RoundCosts,
    measured: Mapping[int, float | None] | None = None,
    legal: tuple[int, ...] = (),
) -> int | None:
    """The block size with the most to gain, or `current` when none gains enough.

    `measured` holds the speed-ups over plain decode of sizes with a verdict, `current` among them; such a
    size competes with that figure alone, and not at all where it is None. Only `legal` sizes are
    considered, if any are given. None where acceptance or cost is unknown.
    """
    gains = predicted(current, rates, costs)
    if not gains:
        return None
    known = measured or {}
    base = known.get(current)
    worth = {rows: gain for rows, gain in gains.items() if gain >= MIN_PREDICTED_GAIN and rows not in known}
    if base:
        found = {rows: speedup / base for rows, speedup in known.items() if speedup and rows != current}
        worth |= {rows: gain for rows, gain in found.items() if gain >= MIN_MEASURED_GAIN}
    worth = {rows: gain for rows, gain in worth.items() if not legal or rows in legal}
    return max(worth, key=lambda rows: (worth[rows], -rows), default=current)


def _last_conditional(rates: tuple[float, ...]) -> float:
    before = rates[-2] if len(rates) > 1 else 1.0
    return min(rates[-1] / before, 1.0) if rates and before > 0 else 0.0
