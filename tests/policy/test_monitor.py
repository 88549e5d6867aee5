"""A settled verdict stays true: it is watched, re-opened, and tried again, but never flips on a whim."""

import pytest

from messages.policy import Sample, Verdict
from policy.config import PolicyConfig
from policy.gates import gate
from policy.machine import observe
from policy.rules import Rules
from policy.states import Profiling, Settled, State
from tests.policy.builders import copied, rules, sample

RULES = rules()
CONFIG = RULES.config


def settled(verdict: Verdict = "enable", fixed: Rules = RULES) -> Settled:
    """A pairing settled on clear evidence."""
    state: State = Profiling()
    for _ in range(4):
        state = observe(fixed, state, sample(1.8 if verdict == "enable" else 0.7))
    assert isinstance(state, Settled)
    return state


def after(state: State, *samples: Sample, fixed: Rules = RULES) -> State:
    """The state after these samples."""
    for each in samples:
        state = observe(fixed, state, each)
    return state


def other(verdict: Verdict) -> tuple[Verdict, float]:
    """The opposite verdict and a speed-up that stands for it."""
    return ("decline", 0.7) if verdict == "enable" else ("enable", 1.8)


@pytest.mark.parametrize("verdict", ["enable", "decline"])
def test_contradicting_evidence_reopens_and_then_reverses(verdict: Verdict) -> None:
    """Four contradicting samples re-open the profile, the fifth reverses; the original never looked again."""
    opposite, speedup = other(verdict)
    reopened = after(settled(verdict), *[sample(speedup)] * 4)
    assert isinstance(reopened, Profiling)
    assert reopened.reopened == verdict
    reversed_state = after(reopened, sample(speedup))
    assert isinstance(reversed_state, Settled)
    assert reversed_state.verdict == opposite


@pytest.mark.parametrize("verdict", ["enable", "decline"])
def test_three_contradicting_samples_change_nothing(verdict: Verdict) -> None:
    """The dwell keeps a verdict in force however bad the first few look."""
    state = after(settled(verdict), *[sample(other(verdict)[1])] * 3)
    assert isinstance(state, Settled)
    assert state.verdict == verdict


def test_evidence_between_the_bounds_contradicts_neither_verdict() -> None:
    """A true 1.02 keeps either verdict for good: no flapping near the boundary."""
    for verdict in ("enable", "decline"):
        assert isinstance(after(settled(verdict), *[sample(1.02)] * 60), Settled)


def test_a_reopened_profile_may_confirm_the_old_verdict() -> None:
    """One bad stretch re-opens; good evidence afterwards settles as before."""
    reopened = after(settled("enable"), *[sample(0.8)] * 4)
    assert isinstance(reopened, Profiling)
    state = after(reopened, *[sample(1.9)] * 40)
    assert isinstance(state, Settled)
    assert state.verdict == "enable"


def test_old_evidence_leaves_the_window() -> None:
    """A thousand agreeing samples do not make a verdict immovable."""
    state = after(settled("enable"), *[sample(1.8)] * 200)
    assert isinstance(after(state, *[sample(0.7)] * 30), Profiling | Settled)
    final = after(state, *[sample(0.7)] * 30)
    assert isinstance(final, Settled)
    assert final.verdict == "decline"


def test_watching_an_enabled_pairing_is_rare() -> None:
    """One request in 32 is measured, all others run undisturbed."""
    opened = gate(RULES, settled("enable"))
    assert (opened.enabled, opened.measure_every, opened.probe_rounds) == (True, CONFIG.watch_every, 0)


def test_a_declined_pairing_is_tried_again_with_back_off() -> None:
    """The distance between tries doubles up to its limit while they agree with the verdict."""
    state: State = settled("decline")
    distances: list[int] = []
    for _ in range(8):
        closed = gate(RULES, state)
        assert closed.enabled is False
        distances.append(closed.measure_every)
        state = after(state, sample(0.7))
    assert distances == [32, 64, 128, 256, 512, 1024, 1024, 1024]


@pytest.mark.parametrize("verdict", ["enable", "decline"])
def test_doubt_brings_the_next_look_near(verdict: Verdict) -> None:
    """A sample that leans against the verdict is followed up soon, then forgotten if it was chance."""
    state = settled(verdict)
    doubtful = after(state, sample(other(verdict)[1]))
    assert gate(RULES, doubtful).measure_every == CONFIG.suspect_every
    calmed = after(doubtful, *[sample(1.8 if verdict == "enable" else 0.7)] * 3)
    assert gate(RULES, calmed).measure_every > CONFIG.suspect_every


def test_samples_that_do_not_qualify_do_not_move_the_watch() -> None:
    """Cancelled and tiny requests neither count as agreement nor as doubt."""
    state = settled("decline")
    assert after(state, sample(2.0, cancelled=True), sample(2.0, rounds=8)) == state


def test_under_the_original_rule_a_verdict_is_final() -> None:
    """The selectable original keeps its behaviour: nothing is measured any more, nothing re-opens."""
    fixed = rules(PolicyConfig(estimator="measured"))
    state = after(Profiling(), *[sample(2.0)] * 4, fixed=fixed)
    assert after(state, *[sample(0.5)] * 20, fixed=fixed) == state
    assert gate(fixed, state).measure_every == 0


def test_the_gate_carries_the_break_even_for_bailing_out() -> None:
    """Three tokens a round at a speed-up of 1.8 break even at 3 / 1.8 tokens."""
    bail_out = gate(RULES, settled("enable")).bail_out
    assert bail_out is not None
    assert bail_out.break_even_emitted == pytest.approx(3 / 1.8)


def test_rounds_of_copies_are_among_those_that_break_even() -> None:
    """The speed-up is that of all rounds, so what a round costs follows from all of them too."""
    state = after(Profiling(), *[sample(1.8, accepted=1), copied(1.8, accepted=3)] * 2)
    bail_out = gate(RULES, state).bail_out
    assert bail_out is not None
    assert bail_out.break_even_emitted == pytest.approx(3 / 1.8)
