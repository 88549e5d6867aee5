"""Arithmetic on the counters replicas report, and which gate below the policy starves it."""

from collections import Counter

from messages.policy import Counts, Declined, DeclineReason, FallbackReason, FellBack


def plus(left: Counts, right: Counts) -> Counts:
    """The sum of two replicas' counters."""
    return Counts(
        attempts=left.attempts + right.attempts,
        bursts=left.bursts + right.bursts,
        declines=_rows(_by_reason(left) + _by_reason(right)),
        fallbacks=_fallback_rows(_fallbacks(left) + _fallbacks(right)),
        audited=left.audited + right.audited,
        mismatches=left.mismatches + right.mismatches,
    )


def minus(later: Counts, earlier: Counts) -> Counts:
    """What was counted between two readings."""
    return Counts(
        attempts=max(later.attempts - earlier.attempts, 0),
        bursts=max(later.bursts - earlier.bursts, 0),
        declines=_rows(_by_reason(later) - _by_reason(earlier)),
        fallbacks=_fallback_rows(_fallbacks(later) - _fallbacks(earlier)),
        audited=max(later.audited - earlier.audited, 0),
        mismatches=max(later.mismatches - earlier.mismatches, 0),
    )


def starving_gate(since: Counts, too_short: int, starved_after: int) -> DeclineReason | None:
    """The most frequent reason if every attempt since the last progress came to nothing, else None.

    `too_short` counts bursts that ran but were too small to count. Attempts still under way say nothing:
    under steady load there always are some.
    """
    reasons = _by_reason(since)
    # A drafter that fails before the first round is counted both ways.
    broken = max(_fallbacks(since)["drafter_failed"] - reasons["drafter_failed"], 0)
    reasons["too_short"] += too_short
    reasons["drafter_failed"] += broken
    if reasons.total() < starved_after or since.bursts > too_short + broken:
        return None
    return max(reasons, key=lambda reason: (reasons[reason], reason))


def _by_reason(counts: Counts) -> Counter[DeclineReason]:
    reasons: Counter[DeclineReason] = Counter()
    for row in counts.declines:
        reasons[row.reason] += row.count
    return reasons


def _rows(reasons: Counter[DeclineReason]) -> tuple[Declined, ...]:
    return tuple(Declined(reason, count) for reason, count in sorted(reasons.items()))


def _fallbacks(counts: Counts) -> Counter[FallbackReason]:
    return Counter({row.reason: row.count for row in counts.fallbacks})


def _fallback_rows(reasons: Counter[FallbackReason]) -> tuple[FellBack, ...]:
    return tuple(FellBack(reason, count) for reason, count in sorted(reasons.items()))
