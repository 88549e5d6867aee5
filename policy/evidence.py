"""What has been measured about a pairing: the qualifying samples, and the sums everything else is made of.

Knows when a sample is fit to be counted; draws no conclusion from it.
"""

import msgspec
from msgspec import Struct

from messages.policy import Sample, Slice
from policy.config import PolicyConfig

MAX_PROBE_MEANS = 8
# Values beyond these cannot come from a request and would only overflow or underflow the sums.
_MAX_COUNT = 1 << 40
_MAX_MS = 1e12
_MIN_MS = 1e-6


class Evidence(Struct, frozen=True):
    """Qualifying samples, oldest first, and mean probe steps (ms) of the first measured requests.

    Its samples hold usable slices only. A request that ended in its probe adds the mean although it does not
    qualify.
    """

    samples: tuple[Sample, ...] = ()
    probe_means: tuple[float, ...] = ()


class Totals(Struct, frozen=True):
    """Sums over samples; every round weighs the same."""

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0


def qualifies(config: PolicyConfig, sample: Sample) -> bool:
    """Whether the sample advances the profile under the configured estimator."""
    return _qualifies(config, _cleaned(sample))


def add(config: PolicyConfig, evidence: Evidence, sample: Sample) -> Evidence:
    """`evidence` with what the sample contributes, possibly nothing."""
    cleaned = _cleaned(sample)
    samples = (*evidence.samples, cleaned) if _qualifies(config, cleaned) else evidence.samples
    mean = probe_mean(sample)
    means = evidence.probe_means
    if mean is not None and len(means) < MAX_PROBE_MEANS:
        means = (*means, mean)
    return Evidence(samples, means)


def requalified(config: PolicyConfig, evidence: Evidence) -> Evidence:
    """What of stored evidence still counts under this configuration."""
    return Evidence(
        tuple(kept for sample in evidence.samples if _qualifies(config, kept := _cleaned(sample))),
        tuple(mean for mean in evidence.probe_means if _is_time(mean))[:MAX_PROBE_MEANS],
    )


def newest(config: PolicyConfig, evidence: Evidence) -> Evidence:
    """The newest samples worth at most `cap_rounds` rounds, for a window that moves with the traffic."""
    kept: list[Sample] = []
    rounds = 0.0
    for sample in reversed(evidence.samples):
        rounds += effective_rounds(config, sample)
        if kept and rounds > config.cap_rounds:
            break
        kept.append(sample)
    return Evidence(tuple(reversed(kept)), evidence.probe_means)


def weight(config: PolicyConfig, sample: Sample) -> float:
    """At most 1; less for a request so long that it would dominate the others."""
    rounds = sum(part.rounds for part in sample.slices)
    return min(1.0, config.max_rounds_per_sample / rounds) if rounds else 0.0


def effective_rounds(config: PolicyConfig, sample: Sample) -> float:
    """Rounds that count towards the cap on profiling."""
    return min(sum(part.rounds for part in sample.slices), config.max_rounds_per_sample)


def probe_mean(sample: Sample) -> float | None:
    """Mean wall time of a one-token step through the verify path, in ms."""
    if not 1 <= sample.probe_rounds <= _MAX_COUNT or not _is_time(sample.probe_ms):
        return None
    return sample.probe_ms / sample.probe_rounds


def totals(samples: tuple[Sample, ...]) -> Totals:
    """Round-weighted sums."""
    return Totals(
        rounds=sum(sample.rounds for sample in samples),
        proposed=sum(sample.proposed for sample in samples),
        accepted=sum(sample.accepted for sample in samples),
        emitted=sum(sample.emitted for sample in samples),
    )


def acceptance_rate(samples: tuple[Sample, ...]) -> float | None:
    """Accepted over proposed drafts, None where none were proposed."""
    sums = totals(samples)
    return sums.accepted / sums.proposed if sums.proposed else None


def position_rates(samples: tuple[Sample, ...]) -> tuple[float, ...]:
    """Fraction of rounds that kept the draft at each position."""
    rounds = sum(sample.rounds for sample in samples)
    if not rounds:
        return ()
    depth = max(len(sample.accepted_per_position) for sample in samples)
    kept = [0] * depth
    for sample in samples:
        for position, count in enumerate(sample.accepted_per_position):
            kept[position] += count
    return tuple(count / rounds for count in kept)


def _cleaned(sample: Sample) -> Sample:
    """The sample with only those slices that hold a comparison."""
    return msgspec.structs.replace(sample, slices=tuple(filter(_is_comparison, sample.slices)))


def _qualifies(config: PolicyConfig, cleaned: Sample) -> bool:
    if not _is_sane(cleaned):
        return False
    if config.estimator != "paired":
        return cleaned.rounds >= 1
    # The slices are what counts: a request may have been served by copies alone, which the totals leave out.
    return (
        not cleaned.cancelled
        and sum(part.rounds for part in cleaned.slices) >= config.min_rounds_per_sample
        and sum(part.plain_tokens for part in cleaned.slices) >= config.min_plain_tokens
    )


def _is_sane(sample: Sample) -> bool:
    counts = (sample.rounds, sample.emitted, *sample.accepted_per_position)
    times = (sample.draft_ms, sample.verify_ms, sample.overhead_ms)
    return (
        0 <= sample.accepted <= sample.proposed <= _MAX_COUNT
        and all(0 <= count <= _MAX_COUNT for count in counts)
        and all(count <= sample.rounds for count in sample.accepted_per_position)
        and all(0 <= ms <= _MAX_MS for ms in times)
    )


def _is_comparison(part: Slice) -> bool:
    return (
        1 <= part.rounds <= _MAX_COUNT
        and 1 <= part.emitted <= _MAX_COUNT
        and 1 <= part.plain_tokens <= _MAX_COUNT
        and _is_time(part.mtp_ms)
        and _is_time(part.plain_ms)
    )


def _is_time(ms: float) -> bool:
    # A comparison with NaN is False.
    return _MIN_MS <= ms <= _MAX_MS
