"""Rates of single answers and of answers generated together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.reply import decode_tps, same_answer, throughput_tps
from tests.bench.builders import reply


def test_the_first_token_belongs_to_the_prompt_phase() -> None:
    """Eleven tokens in one second after the first are ten decode steps per second."""
    one = reply(tps=10, tokens=11)
    assert one.decode_tps == pytest.approx(10)
    assert one.ttft_ms == pytest.approx(500)
    assert one.request_tps == pytest.approx(11 / 1.5)


def test_an_answer_of_one_token_has_no_decode_rate() -> None:
    """Nothing is divided by zero; the caller sees 0."""
    assert reply(tokens=1).decode_tps == 0


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=8))
def test_streams_add_up(rates: list[float]) -> None:
    """The decode rate of a group is the sum of its streams' rates."""
    assert decode_tps([reply(tps=rate) for rate in rates]) == pytest.approx(sum(rates))


def test_throughput_spans_from_the_first_request_to_the_last_end() -> None:
    """A late stream lengthens the span although its own rate is high."""
    early, late = reply(tps=10, tokens=11), reply(tokens=21, sent_s=100.0, first_s=103.0, end_s=104.0)
    assert throughput_tps([early, late]) == pytest.approx(32 / 4)


@pytest.mark.parametrize(
    "changes",
    [{"text": "else"}, {"finish_reason": "stop"}, {"prompt_tokens": 8}, {"completion_tokens": 12}],
)
def test_every_part_of_an_answer_counts_for_identity(changes: dict[str, object]) -> None:
    """Text, finish reason and both token counts must agree."""
    assert same_answer(reply(), reply(tps=99))
    assert not same_answer(reply(), reply(**changes))


def test_only_one_leading_space_is_forgiven() -> None:
    """mlx-lm's detokenizer drops exactly one."""
    assert same_answer(reply(text=" a"), reply(text="a"))
    assert not same_answer(reply(text="  a"), reply(text="a"))
