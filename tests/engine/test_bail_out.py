"""Bailing out of a losing burst, and coming back."""

from engine.bail_out import BailOutState, after_plain, after_round
from messages.policy import BailOut

LIMITS = BailOut(break_even_emitted=2.0, window_rounds=4, loss_ratio=1.3, pause_tokens=10)


def run(emitted: list[int], burst: BailOutState = BailOutState()) -> BailOutState:  # noqa: B008 - a frozen value
    """The burst after these rounds."""
    for tokens in emitted:
        burst = after_round(LIMITS, burst, tokens)
    return burst


def test_a_clearly_losing_burst_pauses() -> None:
    """Four rounds of one token where two would break even: plain decode takes over."""
    assert run([1, 1, 1]).may_speculate
    assert not run([1, 1, 1, 1]).may_speculate


def test_a_slightly_losing_burst_goes_on() -> None:
    """Seven tokens in four rounds are within the ratio."""
    assert run([1, 2, 2, 2]).may_speculate


def test_it_comes_back_and_waits_twice_as_long_the_next_time() -> None:
    """Ten plain tokens after the first bail-out, twenty after the second."""
    first = run([1, 1, 1, 1])
    assert not after_plain(first, 9).may_speculate
    back = after_plain(first, 10)
    assert back.may_speculate
    assert run([1, 1, 1, 1], back).plain_tokens_left == 20


def test_a_good_start_does_not_hide_a_bad_stretch() -> None:
    """Each window is judged for itself."""
    assert not run([4, 4, 4, 4, 1, 1, 1, 1]).may_speculate
