"""How often a verdict is wrong, against traffic whose true speed-up is known (seeded, 10 % timing noise).

K = 4, geometric acceptance, requests of 16 to 64 rounds; half of the servers have a static default that
agrees with the truth, half one that does not. Share of wrong verdicts, measured with 200 to 600 servers:

| true speed-up                                | 0.80  | 0.96  | 1.16  | 1.50  | 1.95  |
| paired, at settling                          | 0     | 0.003 | 0     | 0     | 0     |
| paired, 400 rounds later                     | 0     | 0.002 | 0     | 0     | 0     |
| paired, mean rounds until it settles         | 166   | 442   | 257   | 163   | 163   |
| original, measured form, 1 round a sample    | 0.115 | 0.250 | 0.585 | 0.310 | 0.140 |
| original, measured form, 10 rounds a sample  | 0.005 | 0.140 | 0.570 | 0.260 | 0.005 |
| original, upper bound, 10 rounds a sample    | 0.980 | 0.980 | 0.020 | 0.020 | 0.020 |

At 1.04, where either verdict costs next to nothing, two thirds of the servers enable.
"""

from functools import cache

import numpy as np
import pytest
from msgspec import Struct

from messages.policy import Verdict
from policy.config import EstimatorName, PolicyConfig
from policy.machine import observe
from policy.states import Profiling, Settled, State
from tests.policy.builders import rules
from tests.policy.traffic import Traffic, sample

FURTHER_ROUNDS = 400
RIGHT: dict[float, Verdict] = {
    0.80: "decline",
    0.96: "decline",
    1.16: "enable",
    1.50: "enable",
    1.95: "enable",
}


class Outcome(Struct, frozen=True):
    """One simulated server: its first verdict, the rounds it took, and the verdict after more traffic."""

    settled: Verdict
    rounds: int
    later: Verdict


def serve(
    speedup: float, seed: int, estimator: EstimatorName = "paired", rounds: tuple[int, int] = (16, 64)
) -> Outcome:
    """Profile until settled, then feed `FURTHER_ROUNDS` rounds of watched requests.

    While a re-opened profile runs, the earlier verdict counts as the one in force.
    """
    rng = np.random.default_rng(seed)
    traffic = Traffic(speedup=speedup)
    fixed = rules(PolicyConfig(estimator=estimator), static_default=bool(seed % 2))
    state: State = Profiling()
    spent = 0
    while not isinstance(state, Settled):
        spent += (count := int(rng.integers(*rounds, endpoint=True)))
        state = observe(fixed, state, sample(traffic, rng, count, at_s=float(spent)))
    first = in_force = state.verdict
    further = 0
    while further < FURTHER_ROUNDS and estimator == "paired":
        further += (count := int(rng.integers(*rounds, endpoint=True)))
        state = observe(fixed, state, sample(traffic, rng, count, at_s=float(spent + further)))
        in_force = state.verdict if isinstance(state, Settled) else in_force
    return Outcome(first, spent, in_force)


@cache
def outcomes(speedup: float, runs: int) -> tuple[Outcome, ...]:
    """The outcomes of `runs` servers under the paired estimator."""
    return tuple(serve(speedup, seed) for seed in range(runs))


def wrong_at_settling(speedup: float, found: tuple[Outcome, ...]) -> float:
    """Share of servers whose first verdict is wrong."""
    return sum(outcome.settled != RIGHT[speedup] for outcome in found) / len(found)


@pytest.mark.parametrize("speedup", [0.80, 1.50, 1.95])
def test_a_clear_case_is_never_judged_wrongly(speedup: float) -> None:
    """At 0.80 and from 1.5 upward no server settles wrongly, and most need just the four samples."""
    found = outcomes(speedup, 80)
    assert wrong_at_settling(speedup, found) == 0
    assert all(outcome.later == RIGHT[speedup] for outcome in found)
    assert np.mean([outcome.rounds for outcome in found]) < 200


@pytest.mark.parametrize("speedup", [0.96, 1.16])
def test_a_close_case_is_rarely_judged_wrongly(speedup: float) -> None:
    """At 0.96 and 1.16 under 10 % settle wrongly and under 2 % still are wrong 400 rounds later."""
    found = outcomes(speedup, 200)
    assert wrong_at_settling(speedup, found) < 0.10
    assert sum(outcome.later != RIGHT[speedup] for outcome in found) / len(found) < 0.02


def test_an_indifferent_case_settles_all_the_same() -> None:
    """At 1.04 profiling ends at its cap instead of going on for ever."""
    config = PolicyConfig()
    most = config.cap_rounds + config.max_rounds_per_sample
    assert all(outcome.rounds <= most for outcome in outcomes(1.04, 40))


@pytest.mark.parametrize(("speedup", "at_least"), [(0.96, 0.15), (1.16, 0.5)])
def test_the_original_rule_is_often_wrong_on_tiny_requests(speedup: float, at_least: float) -> None:
    """With one round a sample the measured form errs where the paired one does not."""
    found = tuple(serve(speedup, seed, "measured", (1, 1)) for seed in range(200))
    assert wrong_at_settling(speedup, found) > at_least
    assert wrong_at_settling(speedup, found) > 5 * wrong_at_settling(speedup, outcomes(speedup, 200))


def test_the_upper_bound_enables_what_loses() -> None:
    """The first form of the original rule leaves the verify cost out, so it enables at a true 0.80."""
    found = tuple(serve(0.80, seed, "upper_bound", (10, 10)) for seed in range(100))
    assert wrong_at_settling(0.80, found) > 0.9
