"""What rounds cost and the bound that follows, from the run, from the probe or from nothing."""

import pytest

from bench.reply import Draft
from bench.rounds import Limit, RoundTimes, limit, plain_scale, round_times

CURVE = [{"rows": 1, "ms": 100.0}, {"rows": 4, "ms": 125.0}]
POLICY = {"block_size": 4, "verify_cost": CURVE}
TIMES = RoundTimes(plain_ms=100.0, draft_ms=20.0, verify_ms=200.0, overhead_ms=5.0)


def test_the_limit_rests_on_the_best_known_times() -> None:
    """Two tokens per round: 1.0 by this run's times, 1.6 by the probe's, 2 if verifying cost a plain step."""
    assert limit(2.0, TIMES, POLICY) == Limit(1.0, "rounds")
    assert limit(2.0, None, POLICY) == Limit(1.6, "verify_cost")
    assert limit(2.0, None, POLICY | {"verify_cost": CURVE[:1]}) == Limit(2.0, "flat_verify")
    assert limit(2.0, None, {"block_size": None, "verify_cost": None}) == Limit(2.0, "flat_verify")
    assert limit(None, None, POLICY) is None


def test_times_are_means_per_round() -> None:
    """Totals of an answer over its rounds; a server that tells none gives none."""
    told = Draft(
        draft_n=12,
        draft_n_accepted=3,
        draft_rounds=4,
        draft_ms=80.0,
        draft_verify_ms=800.0,
        draft_overhead_ms=20.0,
    )
    assert round_times(100.0, told) == TIMES
    assert TIMES.drafter_share == pytest.approx(20 / 225)
    assert round_times(100.0, Draft(draft_n=12, draft_n_accepted=3, draft_rounds=4)) is None


def test_padding_can_only_make_plain_decode_slower() -> None:
    """A quotient above 1 is a disturbed measurement; without both times there is none."""
    assert plain_scale(POLICY | {"plain_step_ms": 80.0}) == 0.8
    assert plain_scale(POLICY | {"plain_step_ms": 130.0}) == 1.0
    assert plain_scale(POLICY | {"plain_step_ms": None}) is None
    assert plain_scale({"plain_step_ms": 80.0}) is None
