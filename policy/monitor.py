"""Keeps a settled verdict true: when to look again, and when the evidence contradicts it.

Enabling needs an interval above 1 + margin and contradicting it one below 1 (and the other way round), so
no stretch of evidence can support both.
"""

import msgspec

from messages.policy import Sample, Verdict
from policy import estimator_paired
from policy.config import PolicyConfig
from policy.estimator_paired import Estimate
from policy.evidence import add, newest
from policy.rules import Rules
from policy.states import Profiling, Settled


def watch(rules: Rules, state: Settled, sample: Sample) -> Settled | Profiling:
    """The settled state after one more sample, or a re-opened profile.

    Under the original estimators a verdict is final.
    """
    config = rules.config
    if config.estimator != "paired":
        return state
    grown = add(config, state.watch, sample)
    if len(grown.samples) == len(state.watch.samples):
        return state
    window = newest(config, grown)
    watched = state.watched + 1
    found = estimator_paired.estimate(config, window.samples)
    contradicted = estimator_paired.decided(config, found) not in {None, state.verdict}
    if contradicted and watched >= config.dwell_samples:
        return Profiling(window, reopened=state.verdict)
    doubted = _leans_against(config, state.verdict, found)
    return msgspec.structs.replace(
        state,
        watch=window,
        watched=watched,
        doubted=doubted,
        agreed=0 if doubted else state.agreed + 1,
    )


def measure_every(config: PolicyConfig, state: Settled) -> int:
    """Which eligible requests are measured under a verdict: every n-th, 0 for none.

    A declined pairing is tried at doubling distances; doubt brings the next measurement near.
    """
    if config.estimator != "paired":
        return 0
    if state.doubted:
        return config.suspect_every
    if state.verdict == "enable":
        return config.watch_every
    # The exponent is bounded only to keep the integer small; the limit is what matters.
    return min(config.retry_every << min(state.agreed, 32), config.retry_limit)


def _leans_against(config: PolicyConfig, verdict: Verdict, found: Estimate | None) -> bool:
    if found is None:
        return False
    return found.speedup < 1 if verdict == "enable" else found.speedup > 1 + config.margin
