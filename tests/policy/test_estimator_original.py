"""The original estimators: formulas, thresholds, aggregation and degenerate input."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.config import PolicyConfig
from policy.estimator_original import (
    RoundProfile,
    fallback_multiplier,
    measured,
    measured_or_fallback,
    resolve,
    round_profile,
    upper_bound,
    zone,
)
from policy.evidence import Evidence, add
from tests.policy.builders import sample

CONFIG = PolicyConfig(estimator="measured")


def evidence(*samples: object) -> Evidence:
    """Evidence of these samples under the original rules."""
    found = Evidence()
    for each in samples:
        found = add(CONFIG, found, each)
    return found


def test_the_measured_form_divides_classic_time_by_round_cost() -> None:
    """Three tokens a round, 40 ms classic, 60 ms a round: twice as fast."""
    profile = RoundProfile(accepted_len=2, drafter_ms=15, verify_ms=40, overhead_ms=5, classic_step_ms=40)
    assert measured(profile) == pytest.approx(2.0)


def test_the_fallback_serves_only_without_a_probe() -> None:
    """L = 2.5, verify 4, draft 1: 2.8 at m = 1 and 1.4 at m = 2; with a probe the measured form counts."""
    profile = RoundProfile(accepted_len=2.5, drafter_ms=1, verify_ms=4)
    assert measured_or_fallback(profile, 1.0) == pytest.approx(2.8)
    assert measured_or_fallback(profile, 2.0) == pytest.approx(1.4)
    probed = msgspec.structs.replace(profile, classic_step_ms=5.0)
    assert measured_or_fallback(probed, 1.0) == measured(probed) == pytest.approx(3.5)


def test_the_fallback_multiplier_is_one_on_apple_and_the_root_of_k_elsewhere() -> None:
    """A K-row verify is assumed to cost one step on Apple silicon only."""
    assert fallback_multiplier(True, 4) == 1.0
    assert fallback_multiplier(False, 4) == 2.0
    assert fallback_multiplier(False, 0) == 1.0


@pytest.mark.parametrize(
    ("speedup", "where"),
    [(1.5, "enable"), (1.4999, "dead_band"), (1.15, "dead_band"), (1.0, "decline"), (None, "no_estimate")],
)
def test_thresholds_are_inclusive(speedup: float | None, where: str) -> None:
    """1.5 enables, 1.0 declines, between them and without an estimate nothing is decided."""
    assert zone(speedup, decline_threshold=1.0, enable_threshold=1.5) == where


def test_the_static_default_decides_where_the_thresholds_do_not() -> None:
    """The dead band and a missing estimate fall to the table, in both directions."""
    assert resolve("enable", False) == "enable"
    assert resolve("decline", True) == "decline"
    for where in ("dead_band", "no_estimate"):
        assert (resolve(where, True), resolve(where, False)) == ("enable", "decline")


def test_every_round_weighs_the_same() -> None:
    """Samples of 4 and 6 rounds average as ten rounds, not as two requests."""
    profile = round_profile(evidence(sample(rounds=4, accepted=0), sample(rounds=6, accepted=2)))
    assert profile is not None
    assert profile.accepted_len == pytest.approx(12 / 10)


def test_one_compiling_burst_does_not_move_the_classic_step() -> None:
    """The median of the probe means ignores a single outlier among three or more."""
    slow = msgspec.structs.replace(sample(), probe_ms=3200.0)
    profile = round_profile(evidence(slow, sample(), sample()))
    assert profile is not None
    assert profile.classic_step_ms == 40.0


def test_an_even_number_of_probes_averages_the_middle_two() -> None:
    """Two probe means of 40 and 60 ms give 50."""
    profile = round_profile(evidence(sample(), msgspec.structs.replace(sample(), probe_ms=120.0)))
    assert profile is not None
    assert profile.classic_step_ms == 50.0


def test_a_request_without_a_round_adds_its_probe_but_does_not_count() -> None:
    """It advances no sample, and its probe mean is kept; at most eight means are."""
    idle = msgspec.structs.replace(
        sample(rounds=0), draft_ms=0.0, verify_ms=0.0, overhead_ms=0.0, probe_ms=100.0
    )
    found = evidence(*[idle] * 9, sample())
    assert len(found.samples) == 1
    assert found.probe_means == (50.0,) * 8


def test_nothing_measured_gives_no_profile() -> None:
    """Without rounds there is nothing to divide by."""
    assert round_profile(Evidence()) is None


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -1.0, math.nan, math.inf])
profiles = st.builds(
    RoundProfile,
    accepted_len=numbers,
    drafter_ms=numbers,
    verify_ms=numbers,
    overhead_ms=numbers,
    classic_step_ms=st.none() | numbers,
)


@given(profiles, numbers)
def test_degenerate_numbers_give_no_estimate_and_no_exception(
    profile: RoundProfile, multiplier: float
) -> None:
    """Whatever comes in, the answer is a finite number or none."""
    for found in (
        measured(profile),
        upper_bound(profile, multiplier),
        measured_or_fallback(profile, multiplier),
    ):
        assert found is None or math.isfinite(found)
    if profile.drafter_ms < 0 or profile.accepted_len < 0:
        assert measured_or_fallback(profile, multiplier) is None
