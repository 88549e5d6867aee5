"""Asks the configured estimator: is there a verdict yet, and what do the measurements say?"""

from messages.policy import ClassReport, ContextClass, Sample, TemperatureClass, Verdict
from policy import estimator_original, estimator_paired
from policy.config import SAMPLES_REQUIRED, PolicyConfig
from policy.evidence import Evidence, acceptance_rate, effective_rounds, position_rates, totals
from policy.rules import Rules
from policy.states import Figures

SHORT_CONTEXT_TOKENS = 512
LONG_CONTEXT_TOKENS = 4096


def verdict(rules: Rules, evidence: Evidence) -> Verdict | None:
    """The verdict the evidence supports, or None to go on measuring."""
    if len(evidence.samples) < SAMPLES_REQUIRED:
        return None
    if rules.config.estimator != "paired":
        return original_verdict(rules, original_speedup(rules, evidence))
    found = estimator_paired.estimate(rules.config, evidence.samples)
    decided = estimator_paired.decided(rules.config, found)
    if decided is None and is_capped(rules.config, evidence):
        return estimator_paired.resolve(rules.config, evidence.samples, rules.static_default)
    return decided


def is_capped(config: PolicyConfig, evidence: Evidence) -> bool:
    """Whether profiling has used up its rounds."""
    return sum(effective_rounds(config, sample) for sample in evidence.samples) >= config.cap_rounds


def figures(rules: Rules, evidence: Evidence) -> Figures:
    """Everything the snapshot shows about the evidence."""
    speedup = original_speedup(rules, evidence)
    return Figures(
        rounds=totals(evidence.samples).rounds,
        paired=estimator_paired.estimate(rules.config, evidence.samples),
        positions=position_rates(evidence.samples),
        per_round=estimator_original.round_profile(evidence),
        original_speedup=speedup,
        original_verdict=original_verdict(rules, speedup) if evidence.samples else None,
        classes=by_class(rules.config, evidence),
    )


def context_class(prompt_tokens: int) -> ContextClass:
    """Which kind of context a prompt of that length makes."""
    if prompt_tokens < SHORT_CONTEXT_TOKENS:
        return "short"
    return "medium" if prompt_tokens < LONG_CONTEXT_TOKENS else "long"


def by_class(config: PolicyConfig, evidence: Evidence) -> tuple[ClassReport, ...]:
    """The samples told apart by temperature and context, in a fixed order."""
    groups: dict[tuple[TemperatureClass, ContextClass], list[Sample]] = {}
    for sample in evidence.samples:
        groups.setdefault((sample.temperature, context_class(sample.prompt_tokens)), []).append(sample)
    return tuple(
        _class_report(config, temperature, context, tuple(samples))
        for (temperature, context), samples in sorted(groups.items())
    )


def _class_report(
    config: PolicyConfig, temperature: TemperatureClass, context: ContextClass, samples: tuple[Sample, ...]
) -> ClassReport:
    found = estimator_paired.estimate(config, samples)
    return ClassReport(
        temperature=temperature,
        context=context,
        samples=len(samples),
        acceptance_rate=acceptance_rate(samples),
        speedup=None if found is None else found.speedup,
    )


def original_speedup(rules: Rules, evidence: Evidence) -> float | None:
    """The original estimate, of the kind that is configured or else the measured one."""
    profile = estimator_original.round_profile(evidence)
    if profile is None:
        return None
    if rules.config.estimator == "upper_bound":
        return estimator_original.upper_bound(profile)
    multiplier = estimator_original.fallback_multiplier(rules.is_apple, rules.block_size)
    return estimator_original.measured_or_fallback(profile, multiplier)


def original_verdict(rules: Rules, speedup: float | None) -> Verdict:
    """The verdict of the original thresholds, with the static default between them."""
    where = estimator_original.zone(
        speedup,
        decline_threshold=rules.config.decline_threshold,
        enable_threshold=rules.config.enable_threshold,
    )
    return estimator_original.resolve(where, rules.static_default)
