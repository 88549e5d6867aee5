"""The state machine of one pairing: one table of transitions, pure, replayable.

A message is something that was opened, measured or found out; time comes in with it.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from messages.policy import Exactness, Sample
from policy import judge, monitor
from policy.config import SAMPLES_REQUIRED
from policy.evidence import Evidence, acceptance_rate, add, requalified
from policy.hint import Hint, settled_of
from policy.rules import Rules, measurement_rule
from policy.states import ExactnessDeclined, Forced, Profiling, Settled, State, Unavailable, uncovered


class Remembered(Struct, frozen=True):
    """What the store holds about a pairing; both empty for one never seen."""

    hint: Hint | None = None
    evidence: Evidence = Evidence()


NOTHING = Remembered()


class Opened(Struct, frozen=True):
    """The pairing is served from now on, or starts over because its memory was wiped."""

    remembered: Remembered = NOTHING


Input = Opened | Sample | Exactness
NOT_READY = Unavailable("worker_not_ready")


def observe(rules: Rules, state: State, message: Input) -> State:
    """The next state; every pair of state and message is in the table."""
    return TRANSITIONS[type(state), type(message)](rules, state, message)


def visible_samples(evidence: Evidence) -> int:
    """Samples a profile shows: the last one is only ever counted by settling."""
    return min(len(evidence.samples), SAMPLES_REQUIRED - 1)


def _start(rules: Rules, _: State, message: Opened) -> State:
    if not rules.switches.adaptive:
        return Unavailable("adaptive_disabled")
    if rules.switches.pin is not None:
        return Forced(rules.switches.pin)
    hint = message.remembered.hint
    if hint is not None and hint.rule == measurement_rule(rules.config):
        return settled_of(hint)
    return Profiling(requalified(rules.config, message.remembered.evidence))


def _restart_below(rules: Rules, state: ExactnessDeclined, message: Opened) -> State:
    return ExactnessDeclined(state.detail, under=_start(rules, state, message))


def _restart_unavailable(rules: Rules, state: Unavailable, message: Opened) -> State:
    started = _start(rules, state, message)
    return started if state.under is None else Unavailable(state.reason, under=started)


def _measure(rules: Rules, state: Profiling, sample: Sample) -> State:
    evidence = add(rules.config, state.evidence, sample)
    verdict = judge.verdict(rules, evidence) if evidence.samples != state.evidence.samples else None
    if verdict is None:
        return msgspec.structs.replace(state, evidence=evidence)
    return Settled(
        verdict=verdict,
        # Rounded here, not only on the wire, so that endpoint and file agree exactly.
        acceptance_rate=round(acceptance_rate(evidence.samples) or 0.0, 2),
        samples=SAMPLES_REQUIRED,
        source="measured",
        settled_at=sample.at_s,
        figures=judge.figures(rules, evidence),
    )


def _judge_exactness(rules: Rules, state: State, found: Exactness) -> State:
    base = uncovered(state)
    if found.exact is None:
        return Unavailable("exactness_pending", under=base)
    if found.exact or rules.switches.allow_inexact:
        return base
    return ExactnessDeclined(found.detail, under=base)


def _stay(_rules: Rules, state: State, _message: Input) -> State:
    return state


TRANSITIONS: dict[tuple[type, type], Callable[[Rules, Any, Any], State]] = {
    (Unavailable, Opened): _restart_unavailable,
    (Unavailable, Sample): _stay,
    (Unavailable, Exactness): _judge_exactness,
    (Forced, Opened): _start,
    (Forced, Sample): _stay,
    (Forced, Exactness): _judge_exactness,
    (Profiling, Opened): _start,
    (Profiling, Sample): _measure,
    (Profiling, Exactness): _judge_exactness,
    (Settled, Opened): _start,
    (Settled, Sample): monitor.watch,
    (Settled, Exactness): _judge_exactness,
    (ExactnessDeclined, Opened): _restart_below,
    (ExactnessDeclined, Sample): _stay,
    (ExactnessDeclined, Exactness): _judge_exactness,
}
