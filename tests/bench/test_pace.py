"""Decode time per token: whose clock, and which tokens."""

import math

import pytest

from bench.errors import BenchError
from bench.pace import decode_ms, ms_per_token, tokens_in_first_piece
from tests.bench.builders import draft, reply


def test_the_servers_clock_comes_before_arrival_times() -> None:
    """A stream that arrived in a moment is no faster than the server made it."""
    assert decode_ms(reply(predicted_ms=700.0, first_s=100.9, end_s=100.9)) == 700.0
    assert decode_ms(reply(tps=10, tokens=11)) == pytest.approx(1000)


def test_a_burst_without_the_servers_clock_is_refused() -> None:
    """Eleven tokens a millisecond after a second of silence tell nothing of their rate."""
    with pytest.raises(BenchError, match="arrived all at once"):
        decode_ms(reply(first_s=101.0, end_s=101.001))


def test_tokens_that_came_with_the_first_piece_do_not_count_as_decoded_after_it() -> None:
    """A first round of three tokens leaves eight steps for the remaining time, not ten."""
    spec = reply(tps=10, piece_chars=(3, 2, 2, 3), draft=draft(5, 5))
    assert tokens_in_first_piece(reply(), spec) == 3
    assert ms_per_token(reply(), spec) == pytest.approx(1000 / 8)


def test_a_first_piece_holds_at_most_one_round() -> None:
    """Pieces merged under way do not make the answer look as if nothing was left to decode."""
    merged = reply(piece_chars=(10,), draft=draft(5, 5))
    assert tokens_in_first_piece(reply(), merged) == 4


def test_a_plain_answer_begins_with_one_token() -> None:
    """Whatever the length of its first piece."""
    assert tokens_in_first_piece(reply(), reply(piece_chars=(5, 5))) == 1


def test_an_answer_that_ends_in_its_first_piece_has_no_pace() -> None:
    """Nothing is divided by zero."""
    assert math.isinf(ms_per_token(reply(), reply(tokens=1, predicted_ms=0.0)))
