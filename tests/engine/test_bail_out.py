"""Bailing out of a losing burst, and coming back."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from engine.bail_out import BailOutState, after_plain, after_round
from messages.policy import BailOut
from policy.config import PolicyConfig

LIMITS = BailOut(break_even_emitted=1.5, loss_tokens=2.0, pause_tokens=10)


def run(emitted: list[int], burst: BailOutState = BailOutState()) -> BailOutState:  # noqa: B008 - a frozen value
    """The burst after these rounds."""
    for tokens in emitted:
        burst = after_round(LIMITS, burst, tokens)
    return burst


def test_a_losing_burst_pauses_when_it_has_lost_the_limit() -> None:
    """Half a token is lost per round of one: two tokens after four rounds, more after five."""
    assert run([1, 1, 1, 1]).may_speculate
    assert not run([1, 1, 1, 1, 1]).may_speculate


def test_a_paying_burst_goes_on() -> None:
    """A round of two makes up for one of one, however often."""
    assert run([1, 2] * 50) == BailOutState(lost_tokens=0.0)


def test_it_comes_back_and_waits_twice_as_long_the_next_time() -> None:
    """Ten plain tokens after the first bail-out, twenty after the second."""
    first = run([1] * 5)
    assert not after_plain(first, 9).may_speculate
    back = after_plain(first, 10)
    assert back.may_speculate
    again = run([1] * 3, back)
    assert (again.plain_tokens_left, again.bails) == (20, 2)


def test_a_burst_that_has_bailed_out_has_half_of_the_limit_to_lose() -> None:
    """One token instead of two, which two rounds of one token lose and a third exceeds; gains undo it."""
    back = after_plain(run([1] * 5), 10)
    assert run([1, 1], back).may_speculate
    assert not run([1, 1, 1], back).may_speculate
    assert run([3, 1, 1, 1], back).may_speculate


def test_a_good_start_does_not_hide_a_bad_stretch() -> None:
    """Gains are not saved up."""
    assert not run([4, 4, 4, 4, 1, 1, 1, 1, 1]).may_speculate


@given(st.lists(st.integers(1, 4), max_size=60))
def test_no_stretch_of_rounds_loses_more_than_the_limit_and_one_round(emitted: list[int]) -> None:
    """Whatever part of the burst one looks at, up to and with the round that ends it."""
    burst, losses = BailOutState(), []
    for tokens in emitted:
        burst = after_round(LIMITS, burst, tokens)
        losses.append(LIMITS.break_even_emitted - tokens)
        if not burst.may_speculate:
            break
    worst = max((sum(losses[i:j]) for i in range(len(losses)) for j in range(i, len(losses) + 1)), default=0)
    assert worst <= LIMITS.loss_tokens + LIMITS.break_even_emitted - 1
    assert burst.may_speculate == (worst <= LIMITS.loss_tokens)


def answer_time(rng: random.Random, likely: float, limits: BailOut, tokens: int = 96) -> float:
    """Time of an answer in plain tokens, both drafts of a round being right with that likelihood."""
    burst, done, time = BailOutState(), 0, 0.0
    while done < tokens:
        if not burst.may_speculate:
            done, time, burst = done + 1, time + 1, after_plain(burst)
            continue
        emitted = 1 if rng.random() >= likely else 2 if rng.random() >= likely else 3
        done, time = done + emitted, time + limits.break_even_emitted
        burst = after_round(limits, burst, emitted)
    return time


def mean_regret(limits: BailOut, centre: float, spread: float, answers: int = 1500) -> float:
    """Mean time over that of an oracle that knows how likely an answer's drafts are, minus 1."""
    rng = random.Random(1)
    taken = best = 0.0
    for _ in range(answers):
        likely = min(max(rng.gauss(centre, spread), 0.02), 0.95)
        taken += answer_time(rng, likely, limits)
        best += 96 * min(1.0, limits.break_even_emitted / (1 + likely + likely**2))
    return taken / best - 1


def default_limits(loss_tokens: float | None = None) -> BailOut:
    """What a settled policy with default settings tells the engine, of a pairing that breaks even at 1.3."""
    config = PolicyConfig()
    return BailOut(
        break_even_emitted=1.3,
        loss_tokens=config.bail_loss_tokens if loss_tokens is None else loss_tokens,
        pause_tokens=config.bail_pause_tokens,
    )


def test_the_default_neither_gives_up_early_nor_late() -> None:
    """Where speculation pays on the whole, giving up sooner costs more, and so does never giving up."""
    regret = mean_regret(default_limits(), 0.4, 0.15)
    assert regret < 0.025
    assert regret < mean_regret(default_limits(2.0), 0.4, 0.15)
    assert regret < mean_regret(default_limits(math.inf), 0.4, 0.15)


def test_the_default_bounds_what_a_hopeless_answer_costs() -> None:
    """With hardly a draft right, a sixth is lost without a limit and a third of that with it."""
    assert mean_regret(default_limits(math.inf), 0.1, 0.0) > 0.15
    assert mean_regret(default_limits(), 0.1, 0.0) < 0.06
