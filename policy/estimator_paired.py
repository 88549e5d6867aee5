"""The default estimator: wall time per emitted token of MTP against plain decode, with an interval.

Both sides are measured in turns inside the same request, so drift of the machine and the cost of everything
a round does are in the numbers. Knows nothing of thresholds in component times or of static tables.
"""

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from messages.policy import Sample, Slice, Verdict
from policy.config import PolicyConfig
from policy.evidence import weight

# Below this many slices an odd one cannot be told from an ordinary one.
_MIN_SLICES_FOR_OUTLIERS = 8
_MAX_OUTLIER_SHARE = 1 / 8
# On the logarithmic scale; anything wider says as little and would overflow.
_WIDEST = 50.0


class Estimate(Struct, frozen=True, kw_only=True):
    """Speed-up = plain / MTP wall time per emitted token, with its two-sided confidence interval.

    `emitted_per_round` is the mean over the rounds of the slices, whatever proposed their drafts.
    """

    speedup: float
    low: float
    high: float
    plain_ms_per_token: float
    mtp_ms_per_token: float
    emitted_per_round: float


class _Row(Struct, frozen=True, gc=False):
    """One slice with the index and weight of its request."""

    request: int
    weight: float
    part: Slice


def estimate(
    config: PolicyConfig, samples: tuple[Sample, ...], confidence: float | None = None
) -> Estimate | None:
    """Ratio of weighted sums over all slices; None with fewer than two comparisons.

    `confidence` of the interval is the configured one unless given.

    The variance of the logarithm is the linearised one of a ratio of ratios (W. Cochran, Sampling
    Techniques, 3rd ed., ch. 6), taken over slices and over requests: the larger of the two holds, so
    neither noise inside requests nor difference between them is left out. A handful of requests says little
    about how much requests differ, so there the configured spread counts like that many requests more
    (A. Gelman et al., Bayesian Data Analysis, 3rd ed., section 2.6: scaled inverse chi-squared prior).
    """
    rows = _without_outliers(config, _rows(config, samples))
    if len(rows) < 2:
        return None
    plain_ms = sum(row.weight * row.part.plain_ms for row in rows)
    mtp_ms = sum(row.weight * row.part.mtp_ms for row in rows)
    plain_rate = plain_ms / sum(row.weight * row.part.plain_tokens for row in rows)
    emitted = sum(row.weight * row.part.emitted for row in rows)
    mtp_rate = mtp_ms / emitted
    errors = [
        row.weight
        * (
            (row.part.plain_ms - plain_rate * row.part.plain_tokens) / plain_ms
            - (row.part.mtp_ms - mtp_rate * row.part.emitted) / mtp_ms
        )
        for row in rows
    ]
    speedup = plain_rate / mtp_rate
    half_width = min(_half_width(config, confidence or config.confidence, rows, errors), _WIDEST)
    if not (math.isfinite(speedup) and speedup > 0 and math.isfinite(half_width)):
        return None
    return Estimate(
        speedup=speedup,
        low=speedup * math.exp(-half_width),
        high=speedup * math.exp(half_width),
        plain_ms_per_token=plain_rate,
        mtp_ms_per_token=mtp_rate,
        emitted_per_round=emitted / sum(row.weight * row.part.rounds for row in rows),
    )


def decided(config: PolicyConfig, found: Estimate | None) -> Verdict | None:
    """The verdict the interval forces, or None while it does not."""
    if found is None:
        return None
    if found.low > 1 + config.margin:
        return "enable"
    return "decline" if found.high < 1 else None


def resolve(config: PolicyConfig, samples: tuple[Sample, ...], static_default: bool) -> Verdict:
    """The verdict at the end of profiling, on the narrower interval of `closing_confidence`.

    An interval wholly above 1 pays, one wholly below 1 + margin cannot be shown to; only an interval that
    holds both is undecided, and there the static default stands in.
    """
    found = estimate(config, samples, config.closing_confidence)
    if found is not None and found.low > 1:
        return "enable"
    if found is not None and found.high < 1 + config.margin:
        return "decline"
    return "enable" if static_default else "decline"


def _rows(config: PolicyConfig, samples: tuple[Sample, ...]) -> list[_Row]:
    weights = [weight(config, sample) for sample in samples]
    return [
        _Row(index, weights[index], part) for index, sample in enumerate(samples) for part in sample.slices
    ]


def _without_outliers(config: PolicyConfig, rows: list[_Row]) -> list[_Row]:
    """Set aside slices hit by a stall (compilation, another process), as long as they are rare."""
    if len(rows) < _MIN_SLICES_FOR_OUTLIERS:
        return rows
    round_limit = config.outlier_ratio * statistics.median(row.part.mtp_ms / row.part.rounds for row in rows)
    plain_limit = config.outlier_ratio * statistics.median(
        row.part.plain_ms / row.part.plain_tokens for row in rows
    )
    kept = [
        row
        for row in rows
        if row.part.mtp_ms / row.part.rounds <= round_limit
        and row.part.plain_ms / row.part.plain_tokens <= plain_limit
    ]
    return kept if len(rows) - len(kept) <= _MAX_OUTLIER_SHARE * len(rows) else rows


def _half_width(config: PolicyConfig, confidence: float, rows: list[_Row], errors: list[float]) -> float:
    by_request: dict[int, float] = {}
    for row, error in zip(rows, errors, strict=True):
        by_request[row.request] = by_request.get(row.request, 0.0) + error
    expected = _Spread(config.request_spread, config.request_spread_weight)
    return max(
        _interval(confidence, errors, _Spread(0.0, 0)), _interval(confidence, by_request.values(), expected)
    )


class _Spread(NamedTuple):
    """A standard deviation of one value on the logarithmic scale, known as if from that many values more."""

    deviation: float
    values: int


def _interval(confidence: float, errors: Iterable[float], expected: _Spread) -> float:
    """Half-width for a sum of independent errors that sum to zero; 0 where nothing tells their spread."""
    values = list(errors)
    count = len(values)
    degrees = count - 1 + expected.values
    if degrees < 1:
        return 0.0
    # The sum of `count` errors varies as the mean of so many values does.
    squares = count * sum(value * value for value in values) + expected.values * expected.deviation**2 / count
    return _t_quantile(confidence, degrees) * math.sqrt(squares / degrees)


def _t_quantile(confidence: float, degrees: int) -> float:
    """Two-sided Student quantile by its expansion around the normal one (Abramowitz & Stegun 26.7.5)."""
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
