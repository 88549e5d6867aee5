"""Prompts the target makes up: how a turn is opened, taken up, and mixed with the built-in prompts."""

from itertools import islice
from typing import Any

import mlx.core as mx
import pytest

from speculative.fitting.asking import finished, mixed, openings, user_turn
from speculative.fitting.generate import Row


def test_a_turn_is_what_the_template_puts_around_the_words(tokenizer: Any) -> None:
    """Before: everything up to the opener's end, a system message included; after: up to the answer."""
    turn = user_turn(tokenizer, "Tell me", None)
    assert turn.before == tokenizer.encode("<turn> Tell me")
    assert turn.after == tokenizer.encode("<end> <answer>")
    told = user_turn(tokenizer, "Tell me", "Be kind.")
    assert told.before == tokenizer.encode("<turn> Be kind. <end> <turn> Tell me")


def test_a_template_that_hides_the_words_is_refused() -> None:
    """Without the user's words in it, nobody can tell where they would end."""

    class Deaf:
        def apply_chat_template(self, _messages: Any, **_: Any) -> str:
            return "nothing"

    with pytest.raises(ValueError, match="where a user's turn ends"):
        user_turn(Deaf(), "", None)


def test_openings_are_many_and_seeded(tokenizer: Any) -> None:
    """The same seed gives the same openings, another one others; most have words of their own."""
    first, again, other = (
        [tuple(row.tokens) for row in islice(openings(tokenizer, seed), 200)] for seed in (3, 3, 4)
    )
    assert first == again != other
    assert len(set(first)) > 60
    bare = tuple(user_turn(tokenizer, "", None).before)
    assert 20 <= first.count(bare) <= 60


def test_only_turns_that_ended_become_prompts() -> None:
    """The end token gives way to the template's own; unended turns and empty ones are dropped."""
    tokens = mx.array([[7, 8, 11, 12, 13, 14, 5], [7, 8, 11, 12, 13, 14, 15], [7, 8, 5, 0, 0, 0, 0]])
    shard = {"tokens": tokens, "prompts": mx.array([2, 2, 2]), "lengths": mx.array([7, 7, 3])}
    assert list(finished([shard], [5, 6, 9])) == [[7, 8, 11, 12, 13, 14, 5, 6, 9]]


def test_mixing_keeps_the_share_the_order_and_every_row() -> None:
    """While both last, `share` of the rows are asked; then the rest of either follows."""
    built_in = [Row([i], "facts") for i in range(300)]
    asked = [Row([i], "asked") for i in range(100)]
    rows = list(mixed(built_in, asked, 0.25, seed=1))
    for kind, wanted in (("facts", built_in), ("asked", asked)):
        assert [row for row in rows if row.kind == kind] == wanted
    assert 35 <= sum(row.kind == "asked" for row in rows[:200]) <= 65
    assert list(mixed(built_in, asked, 0.25, seed=1)) == rows
    assert {row.kind for row in mixed([], asked, 0.25, seed=1)} == {"asked"}
