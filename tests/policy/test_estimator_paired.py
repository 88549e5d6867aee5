"""The paired estimator: what it measures, when it decides, and what cannot mislead it."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages.policy import Sample, Slice
from policy.config import PolicyConfig
from policy.estimator_original import measured, round_profile
from policy.estimator_paired import Estimate, decided, estimate, resolve
from policy.evidence import Evidence, add, effective_rounds, newest, qualifies
from tests.policy import traffic
from tests.policy.builders import copied, sample

CONFIG = PolicyConfig()
# Takes the difference between requests from the requests alone.
NOTHING_EXPECTED = PolicyConfig(request_spread_weight=0)


def with_slices(*slices: Slice) -> Sample:
    """A sample of just these slices."""
    return msgspec.structs.replace(sample(rounds=sum(part.rounds for part in slices)), slices=slices)


def found(*samples: Sample, config: PolicyConfig = CONFIG) -> Estimate:
    """The estimate over samples that qualify."""
    evidence = Evidence()
    for each in samples:
        evidence = add(config, evidence, each)
    estimated = estimate(config, evidence.samples)
    assert estimated is not None
    return estimated


def test_speedup_is_plain_over_mtp_wall_time_per_emitted_token() -> None:
    """40 ms a token plainly against 60 ms a round of three tokens: twice as fast, with no doubt left."""
    estimated = found(sample(speedup=2.0, accepted=2), config=NOTHING_EXPECTED)
    assert estimated.speedup == pytest.approx(2.0)
    assert (estimated.plain_ms_per_token, estimated.mtp_ms_per_token) == pytest.approx((40.0, 20.0))
    assert (estimated.low, estimated.high) == pytest.approx((2.0, 2.0))


def test_everything_a_round_costs_is_charged() -> None:
    """Drafter catch-up outside the component times turns a gain into a loss; only wall time shows it."""
    honest = sample(speedup=0.9)
    told = msgspec.structs.replace(honest, draft_ms=100.0, verify_ms=500.0, overhead_ms=0.0)
    profile = round_profile(Evidence((told,), (40.0,)))
    assert profile is not None
    assert (measured(profile) or 0.0) > 1.5
    assert found(told).speedup == pytest.approx(0.9)


def test_the_baseline_is_the_real_plain_path() -> None:
    """A probe step slower than pipelined plain decode inflates the original figure, not the paired one."""
    slow_probe = msgspec.structs.replace(sample(speedup=1.0), probe_ms=2 * 40.0 * 1.23)
    profile = round_profile(Evidence((slow_probe,), (40.0 * 1.23,)))
    assert profile is not None
    assert measured(profile) == pytest.approx(1.23)
    assert found(slow_probe).speedup == pytest.approx(1.0)


def test_drift_of_the_machine_cancels() -> None:
    """A machine that becomes twice as slow from slice to slice leaves speed-up and interval alone."""
    rng = np.random.default_rng(3)
    steady = traffic.sample(traffic.Traffic(speedup=1.4, noise=0.02), rng, 64)
    drifting = tuple(
        msgspec.structs.replace(part, mtp_ms=part.mtp_ms * factor, plain_ms=part.plain_ms * factor)
        for part, factor in zip(steady.slices, np.linspace(1, 2, len(steady.slices)).tolist(), strict=True)
    )
    calm, moved = found(steady), found(msgspec.structs.replace(steady, slices=drifting))
    assert moved.speedup == pytest.approx(calm.speedup, rel=0.1)
    assert math.log(moved.high / moved.low) < 1.5 * math.log(calm.high / calm.low)


def test_one_stalled_slice_is_set_aside() -> None:
    """A burst that compiles kernels for 1.6 s does not count; a pairing that stalls often does."""
    ordinary = sample(speedup=1.5, rounds=64)
    stalled = msgspec.structs.replace(ordinary.slices[0], mtp_ms=ordinary.slices[0].mtp_ms + 12_000)
    once = msgspec.structs.replace(ordinary, slices=(stalled, *ordinary.slices[1:]))
    often = msgspec.structs.replace(ordinary, slices=(stalled, stalled, *ordinary.slices[2:]))
    assert found(once).speedup == pytest.approx(1.5)
    assert found(often).speedup < 1


def test_one_long_request_cannot_dominate() -> None:
    """A request ten times as long weighs no more than its cap."""
    long, short = sample(speedup=0.5, rounds=640), sample(speedup=2.0, rounds=64)
    assert effective_rounds(CONFIG, long) == effective_rounds(CONFIG, short) == CONFIG.max_rounds_per_sample
    balanced = found(msgspec.structs.replace(long, slices=long.slices[:8]), short)
    assert found(long, short).speedup == pytest.approx(balanced.speedup)


def test_difference_between_requests_widens_the_interval() -> None:
    """Requests that disagree leave doubt even when each one for itself is exact."""
    mixed = found(*[sample(speedup=2.4), sample(speedup=0.8)] * 2)
    assert decided(CONFIG, mixed) is None
    assert mixed.low < 1 < mixed.high


def test_a_handful_of_requests_is_not_taken_for_certain() -> None:
    """Four requests that agree by chance leave the doubt that the expected spread of seven values leaves."""
    alike = [sample(speedup=1.5)] * 4
    assert found(*alike, config=NOTHING_EXPECTED).low == pytest.approx(1.5)
    deviation = math.sqrt(3 * CONFIG.request_spread**2 / 6) / math.sqrt(4)
    # Student's quantile of 95 % at six degrees of freedom.
    assert math.log(1.5 / found(*alike).low) == pytest.approx(2.447 * deviation, rel=0.01)
    assert math.log(found(*alike).high / 1.5) == pytest.approx(2.447 * deviation, rel=0.01)


def test_an_unlucky_handful_is_not_taken_for_hopeless() -> None:
    """Requests as different as expected settle with the fourth, where their own spread would not do."""
    mixed = [sample(speedup=speedup) for speedup in (1.1, 1.25, 1.4, 1.6)]
    assert decided(CONFIG, found(*mixed)) == "enable"
    assert decided(CONFIG, found(*mixed, config=NOTHING_EXPECTED)) is None


def test_many_requests_speak_for_themselves() -> None:
    """What was expected is soon outweighed."""
    assert math.log(1.5 / found(*[sample(speedup=1.5)] * 100).low) < 0.01


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.06, 1.4, "enable"), (1.05, 1.4, None), (1.01, 1.4, None), (0.9, 0.99, "decline"), (0.9, 1.0, None)],
)
def test_the_interval_decides(low: float, high: float, verdict: str | None) -> None:
    """Wholly above 1 + margin enables, wholly below 1 declines, anything else goes on."""
    estimated = Estimate(
        speedup=1.0, low=low, high=high, plain_ms_per_token=1.0, mtp_ms_per_token=1.0, emitted_per_round=1.0
    )
    assert decided(CONFIG, estimated) == verdict


@pytest.mark.parametrize(("speedup", "verdict"), [(1.03, "enable"), (1.0, "decline"), (0.99, "decline")])
def test_at_the_cap_a_clear_interval_still_decides(speedup: float, verdict: str) -> None:
    """A gain below the margin that is certain is taken, a gain that cannot be shown is not."""
    for static_default in (True, False):
        assert resolve(NOTHING_EXPECTED, (sample(speedup=speedup),), static_default) == verdict


def test_only_real_indecision_falls_to_the_static_default() -> None:
    """An interval that holds both 1 and 1 + margin leaves the table to decide."""
    mixed = (sample(speedup=1.4), sample(speedup=0.8), sample(speedup=1.4), sample(speedup=0.8))
    assert [resolve(CONFIG, mixed, default) for default in (True, False)] == ["enable", "decline"]
    assert [resolve(CONFIG, (), default) for default in (True, False)] == ["enable", "decline"]


@pytest.mark.parametrize(
    "change",
    [{"cancelled": True}, {"slices": ()}, {"rounds": 0}, {"accepted": 1 << 50}, {"verify_ms": math.inf}],
)
def test_what_does_not_qualify(change: dict[str, object]) -> None:
    """Cancelled requests, requests without a comparison and impossible numbers leave no trace."""
    assert not qualifies(CONFIG, msgspec.structs.replace(sample(), **change))


def test_a_tiny_request_does_not_qualify() -> None:
    """A health check of a few rounds cannot settle a pairing; under the original rule it counts."""
    assert not qualifies(CONFIG, sample(rounds=8))
    assert qualifies(CONFIG, sample(rounds=16))
    assert qualifies(PolicyConfig(estimator="measured"), sample(rounds=1))


def test_a_request_served_by_copies_alone_qualifies() -> None:
    """What it gained was measured like any other's; to the original rules it says nothing."""
    assert qualifies(CONFIG, copied())
    assert not qualifies(CONFIG, copied(rounds=8))
    assert not qualifies(PolicyConfig(estimator="measured"), copied())
    assert found(copied(speedup=1.6)).speedup == pytest.approx(1.6)


def test_a_mean_round_is_that_of_the_slices() -> None:
    """Requests weigh in it as they do in the speed-up; copies count although the totals leave them out."""
    assert found(sample(accepted=2), sample(accepted=1)).emitted_per_round == pytest.approx(2.5)
    assert found(sample(accepted=2), copied(accepted=3)).emitted_per_round == pytest.approx(3.5)
    long = found(sample(accepted=2, rounds=64), sample(accepted=1, rounds=6400))
    assert long.emitted_per_round == pytest.approx(2.5)


def test_a_slice_that_compares_nothing_is_left_out() -> None:
    """A burst that ended before its plain part says nothing about the ratio."""
    good = Slice(16, 48, 960.0, 16, 640.0)
    estimated = found(with_slices(good, good, Slice(8, 8, 9999.0, 0, 0.0), Slice(8, 8, math.nan, 8, 9.0)))
    assert estimated.speedup == pytest.approx(2.0)


def test_the_window_moves_with_the_traffic() -> None:
    """Only the newest samples up to the cap are kept."""
    evidence = Evidence(tuple(sample(rounds=64, at_s=float(i)) for i in range(20)))
    kept = newest(CONFIG, evidence)
    assert [each.at_s for each in kept.samples] == [float(i) for i in range(12, 20)]


counts = st.integers(-(1 << 70), 1 << 70)
times = st.floats(allow_nan=True, allow_infinity=True)
slices = st.lists(st.builds(Slice, counts, counts, times, counts, times), max_size=6).map(tuple)


@given(st.lists(slices, max_size=5), st.sampled_from([0.5, 0.95, 0.9999]))
def test_any_slices_give_a_finite_positive_estimate_or_none(
    found: list[tuple[Slice, ...]], confidence: float
) -> None:
    """No garbage from a replica raises or yields a number that is none."""
    config = PolicyConfig(
        confidence=confidence, closing_confidence=0.5, min_rounds_per_sample=1, min_plain_tokens=1
    )
    evidence = Evidence()
    for each in found:
        evidence = add(config, evidence, msgspec.structs.replace(sample(), slices=each))
    estimated = estimate(config, evidence.samples)
    if estimated is not None:
        assert 0 < estimated.low <= estimated.speedup <= estimated.high < math.inf
