"""Keeps a settled verdict true: when to look again, and when the evidence contradicts it.

Enabling needs an interval above 1 + margin and contradicting it one below 1 (and the other way round), so
no stretch of evidence can support both.
"""

import msgspec

from messages.policy import Sample
from policy import estimator_paired
from policy.config import PolicyConfig
from policy.evidence import Evidence, add, newest, qualifies
from policy.rules import Rules
from policy.states import Profiling, Settled


def watch(rules: Rules, state: Settled, sample: Sample) -> Settled | Profiling:
    """The settled state after one more sample, or a re-opened profile.

    Under the original estimators a verdict is final.
    """
    config = rules.config
    if config.estimator != "paired" or not qualifies(config, sample):
        return state
    window = newest(config, add(config, state.watch, sample))
    watched = state.watched + 1
    found = estimator_paired.decided(config, estimator_paired.estimate(config, window.samples))
    if watched >= config.dwell_samples and found not in {None, state.verdict}:
        return Profiling(window, reopened=state.verdict)
    retries = 0 if _leans_against(config, state, window) else state.retries + 1
    return msgspec.structs.replace(state, watch=window, watched=watched, retries=retries)


def measure_every(config: PolicyConfig, state: Settled) -> int:
    """Which eligible requests are measured under a verdict: every n-th, 0 for none.

    A declined pairing is tried at doubling distances; doubt brings the next measurement near.
    """
    if config.estimator != "paired":
        return 0
    if _leans_against(config, state, state.watch):
        return config.suspect_every
    if state.verdict == "enable":
        return config.watch_every
    # The exponent is bounded only to keep the integer small; the limit is what matters.
    return min(config.retry_every << min(state.retries, 32), config.retry_limit)


def _leans_against(config: PolicyConfig, state: Settled, window: Evidence) -> bool:
    found = estimator_paired.estimate(config, window.samples)
    if found is None:
        return False
    if state.verdict == "enable":
        return found.speedup < 1
    return found.speedup > 1 + config.margin
