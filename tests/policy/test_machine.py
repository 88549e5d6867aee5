"""The state machine of one pairing: profiling, settling, pins, vetoes, and the gate of each state."""

from itertools import product
from typing import get_args

import msgspec
import pytest

from messages.policy import Exactness, Sample
from policy.config import PolicyConfig
from policy.evidence import Evidence
from policy.gates import gate
from policy.hint import hint_of, settled_of
from policy.machine import NOT_READY, TRANSITIONS, Input, Opened, Remembered, observe
from policy.rules import Rules
from policy.states import ExactnessDeclined, Forced, Profiling, Settled, State, Unavailable
from policy.switches import Switches
from tests.policy.builders import EXACT, copied, rules, sample

RULES = rules()
ORIGINAL = rules(PolicyConfig(estimator="measured"))
INEXACT = Exactness(exact=False, selection="default", detail="verify block position 0 differs")


def after(fixed: Rules, *messages: Input, state: State = NOT_READY) -> State:
    """The state after these messages."""
    for message in messages:
        state = observe(fixed, state, message)
    return state


def profile(fixed: Rules, *samples: Sample) -> State:
    """The state of a fresh pairing after these samples."""
    return after(fixed, Opened(), EXACT, *samples)


def test_the_table_covers_every_state_and_message() -> None:
    """No pair of state and message is left to chance."""
    assert set(TRANSITIONS) == set(product(get_args(State), get_args(Input)))


def test_a_fresh_pairing_profiles_with_the_gate_open() -> None:
    """Every eligible request speculates and is measured until there is a verdict."""
    state = profile(RULES)
    assert state == Profiling()
    opened = gate(RULES, state)
    assert (opened.enabled, opened.measure_every, opened.probe_rounds) == (True, 1, 2)


@pytest.mark.parametrize(("speedup", "verdict"), [(1.5, "enable"), (1.2, "enable"), (0.8, "decline")])
def test_the_fourth_sample_settles_clear_evidence(speedup: float, verdict: str) -> None:
    """Three samples are not enough, the fourth is."""
    assert isinstance(profile(RULES, *[sample(speedup)] * 3), Profiling)
    state = profile(RULES, *[sample(speedup)] * 3, sample(speedup, at_s=77.0))
    assert isinstance(state, Settled)
    assert (state.verdict, state.samples, state.source, state.settled_at) == (verdict, 4, "measured", 77.0)


def test_undecided_evidence_goes_on_beyond_four_requests() -> None:
    """Deliberately unlike the original, which settles on the fourth request whatever it says."""
    mixed = [sample(1.5), sample(0.8)] * 3
    assert isinstance(profile(RULES, *mixed), Profiling)
    assert isinstance(profile(ORIGINAL, *mixed[:4]), Settled)


@pytest.mark.parametrize(("static_default", "verdict"), [(True, "enable"), (False, "decline")])
def test_profiling_ends_at_the_cap_with_the_static_default(static_default: bool, verdict: str) -> None:
    """Evidence that stays undecided for 512 rounds leaves the table to decide."""
    state = profile(rules(static_default=static_default), *[sample(1.5, 64), sample(0.75, 64)] * 4)
    assert isinstance(state, Settled)
    assert state.verdict == verdict


@pytest.mark.parametrize(
    ("speedup", "static_default", "verdict"),
    [(1.5, False, "enable"), (1.0, True, "decline"), (1.15, True, "enable"), (1.15, False, "decline")],
)
def test_the_original_rule_settles_by_threshold_or_table(
    speedup: float, static_default: bool, verdict: str
) -> None:
    """At 1.5 enable, at 1.0 decline, in between the static default: also at a measured gain of 15 %."""
    fixed = rules(PolicyConfig(estimator="measured"), static_default=static_default)
    state = profile(fixed, *[sample(speedup)] * 4)
    assert isinstance(state, Settled)
    assert state.verdict == verdict


def test_the_dead_band_of_the_original_is_decided_by_evidence() -> None:
    """A steady 1.3 on hardware whose static default declines is enabled by the paired rule."""
    found = [
        profile(rules(config, static_default=False), *[sample(1.3)] * 4)
        for config in (PolicyConfig(), PolicyConfig(estimator="measured"))
    ]
    assert [state.verdict for state in found if isinstance(state, Settled)] == ["enable", "decline"]


def test_requests_without_a_round_do_not_advance_the_profile() -> None:
    """They may only add their probe mean."""
    state = profile(ORIGINAL, *[sample(rounds=0)] * 5)
    assert isinstance(state, Profiling)
    assert state.evidence.samples == ()
    assert len(state.evidence.probe_means) == 5


@pytest.mark.parametrize(("speedup", "verdict"), [(1.6, "enable"), (0.8, "decline")])
def test_requests_served_by_copies_alone_settle_a_verdict(speedup: float, verdict: str) -> None:
    """What they gain or cost is measured; everything about the drafter stays unknown, and nothing breaks."""
    state = profile(RULES, *[copied(speedup)] * 4)
    assert isinstance(state, Settled)
    assert (state.verdict, state.acceptance_rate) == (verdict, 0.0)
    figures = state.figures
    assert (figures.rounds, figures.positions, figures.per_round) == (0, (), None)
    assert figures.original_speedup is None
    assert gate(RULES, state).bail_out is not None
    assert observe(RULES, state, copied(speedup)) == msgspec.structs.replace(
        state, watch=Evidence((copied(speedup),), (40.0,)), watched=1, agreed=1
    )
    unanswered = profile(ORIGINAL, *[copied(speedup)] * 4)
    assert isinstance(unanswered, Profiling)
    assert unanswered.evidence.samples == ()


def test_cancelled_and_tiny_requests_do_not_advance_the_profile() -> None:
    """Four health checks or four aborted answers settle nothing; the original settled on them."""
    assert profile(RULES, *[sample(cancelled=True)] * 4) == profile(RULES, *[sample(rounds=8)] * 4)
    assert isinstance(profile(ORIGINAL, *[sample(rounds=1, cancelled=True)] * 4), Settled)


def test_one_kind_of_odd_traffic_does_not_settle_a_good_pairing() -> None:
    """One raw prompt without any acceptance among good ones keeps profiling going; it once meant decline."""
    raw = sample(speedup=0.6, accepted=0)
    state = profile(RULES, raw, *[sample(1.6)] * 3)
    assert isinstance(state, Profiling)
    assert isinstance(settled := after(RULES, *[sample(1.6)] * 8, state=state), Settled)
    assert settled.verdict == "enable"


def test_the_settled_rate_is_rounded_once() -> None:
    """Two decimals in memory, so endpoint and file agree exactly."""
    state = profile(RULES, *[sample(accepted=2)] * 4)
    assert isinstance(state, Settled)
    assert state.acceptance_rate == 0.67


@pytest.mark.parametrize("pin", [True, False])
def test_a_pin_is_forced_and_nothing_changes_it(pin: bool) -> None:
    """Samples change nothing, nothing is measured, and a stored verdict is not looked at."""
    fixed = rules(switches=Switches(pin=pin))
    stored = profile(RULES, *[sample(0.5 if pin else 2.0)] * 4)
    assert isinstance(stored, Settled)
    remembered = Remembered(hint=hint_of(RULES, stored))
    state = after(fixed, Opened(remembered), EXACT, *[sample()] * 9)
    assert state == Forced(pin)
    assert (gate(fixed, state).enabled, gate(fixed, state).measure_every) == (pin, 0)


@pytest.mark.parametrize("static_default", [True, False])
@pytest.mark.parametrize("pin", [None, True, False])
def test_a_disabled_policy_leaves_pin_or_static_default(pin: bool | None, static_default: bool) -> None:
    """Nothing is measured; the pin decides, without one the table."""
    fixed = rules(switches=Switches(adaptive=False, pin=pin), static_default=static_default)
    state = after(fixed, Opened(), EXACT, *[sample()] * 9)
    assert state == Unavailable("adaptive_disabled")
    assert gate(fixed, state).enabled is (static_default if pin is None else pin)
    assert gate(fixed, state).measure_every == 0


def test_a_stored_verdict_restores_without_a_probe() -> None:
    """A restart with the same key is settled at once and profiles nothing."""
    stored = profile(RULES, *[sample(0.5)] * 4)
    assert isinstance(stored, Settled)
    state = after(RULES, Opened(Remembered(hint=hint_of(RULES, stored))), EXACT)
    assert state == settled_of(hint_of(RULES, stored))
    assert (state.source, state.verdict) == ("restored", "decline")
    assert gate(RULES, state).probe_rounds == 0


def test_a_verdict_of_another_rule_is_measured_again() -> None:
    """A verdict by the original thresholds, or under another margin, is not passed off as ours."""
    stored = profile(ORIGINAL, *[sample(2.0)] * 4)
    assert isinstance(stored, Settled)
    state = after(RULES, Opened(Remembered(hint=hint_of(ORIGINAL, stored))))
    assert state == Profiling()


def test_a_stored_profile_resumes() -> None:
    """Three samples before a restart and one after it settle."""
    before = profile(RULES, *[sample()] * 3)
    assert isinstance(before, Profiling)
    resumed = after(RULES, Opened(Remembered(evidence=before.evidence)), EXACT)
    assert resumed == before
    assert isinstance(observe(RULES, resumed, sample()), Settled)


@pytest.mark.parametrize(
    "switches",
    [Switches(), Switches(pin=True), Switches(adaptive=False, pin=True)],
    ids=["free", "pin", "off"],
)
def test_a_veto_outranks_everything(switches: Switches) -> None:
    """Pinned, measured or disabled: inexact kernels close the gate, and samples change nothing."""
    fixed = rules(switches=switches)
    state = after(fixed, Opened(), EXACT, *[sample()] * 4, INEXACT, sample())
    assert isinstance(state, ExactnessDeclined)
    assert state.detail == INEXACT.detail
    assert gate(fixed, state).enabled is False
    assert gate(fixed, state).measure_every == 0


def test_a_veto_keeps_what_was_known() -> None:
    """A later exact load uncovers the verdict that was there before."""
    settled = profile(RULES, *[sample()] * 4)
    assert after(RULES, INEXACT, EXACT, state=settled) == settled


def test_allowing_inexact_kernels_lifts_the_veto() -> None:
    """The operator's opt-in runs the policy as if the probe had passed."""
    fixed = rules(switches=Switches(allow_inexact=True))
    assert after(fixed, Opened(), INEXACT) == Profiling()


def test_a_pending_probe_closes_the_gate() -> None:
    """Until it has run nothing speculates, pinned or not, and the state says why."""
    fixed = rules(switches=Switches(pin=True))
    state = after(fixed, Opened(), Exactness())
    assert isinstance(state, Unavailable)
    assert state.reason == "exactness_pending"
    assert gate(fixed, state).enabled is False
    assert after(fixed, EXACT, state=state) == Forced(True)


def test_forgetting_starts_over_even_below_a_veto() -> None:
    """A wiped memory shows once the veto is gone."""
    vetoed = profile(RULES, *[sample()] * 4, INEXACT)
    assert after(RULES, Opened(), EXACT, state=vetoed) == Profiling()
    pending = after(RULES, Exactness(), state=vetoed)
    assert after(RULES, Opened(), EXACT, state=pending) == Profiling()
