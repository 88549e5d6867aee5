"""What has been measured about a pairing: the qualifying samples, and the sums everything else is made of.

Knows when a sample is fit to be counted; draws no conclusion from it.
"""

import math

from msgspec import Struct

from messages.policy import Sample, Slice
from policy.config import PolicyConfig

MAX_PROBE_MEANS = 8


class Evidence(Struct, frozen=True):
    """Qualifying samples, oldest first, and mean probe steps (ms) of the first measured requests.

    A request without a single round adds its probe mean although it does not qualify.
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
    if not _is_sane(sample) or sample.rounds < 1:
        return False
    if config.estimator != "paired":
        return True
    slices = usable_slices(sample)
    return (
        not sample.cancelled
        and sum(part.rounds for part in slices) >= config.min_rounds_per_sample
        and sum(part.plain_tokens for part in slices) >= config.min_plain_tokens
    )


def add(config: PolicyConfig, evidence: Evidence, sample: Sample) -> Evidence:
    """`evidence` with what the sample contributes, possibly nothing."""
    samples = (*evidence.samples, sample) if qualifies(config, sample) else evidence.samples
    mean = probe_mean(sample)
    means = evidence.probe_means
    if mean is not None and len(means) < MAX_PROBE_MEANS:
        means = (*means, mean)
    return Evidence(samples, means)


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


def usable_slices(sample: Sample) -> tuple[Slice, ...]:
    """The slices that hold a comparison: both parts present, with finite positive times."""
    return tuple(part for part in sample.slices if _is_comparison(part))


def weight(config: PolicyConfig, sample: Sample) -> float:
    """At most 1; less for a request so long that it would dominate the others."""
    rounds = sum(part.rounds for part in usable_slices(sample))
    return min(1.0, config.max_rounds_per_sample / rounds) if rounds else 0.0


def effective_rounds(config: PolicyConfig, sample: Sample) -> float:
    """Rounds that count towards the cap on profiling."""
    return weight(config, sample) * sum(part.rounds for part in usable_slices(sample))


def probe_mean(sample: Sample) -> float | None:
    """Mean wall time of a one-token step through the verify path, in ms."""
    if sample.probe_rounds < 1 or not math.isfinite(sample.probe_ms) or sample.probe_ms <= 0:
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
    """Accepted over proposed drafts; None without samples, 0 where nothing was proposed."""
    if not samples:
        return None
    sums = totals(samples)
    return sums.accepted / sums.proposed if sums.proposed else 0.0


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


def _is_sane(sample: Sample) -> bool:
    return 0 <= sample.accepted <= sample.proposed and all(
        0 <= count <= sample.rounds for count in sample.accepted_per_position
    )


def _is_comparison(part: Slice) -> bool:
    times = (part.mtp_ms, part.plain_ms)
    return (
        part.rounds >= 1
        and part.emitted >= 1
        and part.plain_tokens >= 1
        and all(math.isfinite(ms) and ms > 0 for ms in times)
    )
