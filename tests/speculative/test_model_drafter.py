"""A classic draft model: same proposals as its own greedy decode, exact history, honest kind."""

import mlx.core as mx
import pytest

from speculative.model_drafter import ModelDrafter
from tests.speculative import tiny
from tests.speculative.decoding import copied_in_turns, generate, plain

PROMPT = tiny.prompt(2 * tiny.WINDOW + 1)


@pytest.mark.parametrize("family", ["llama", "llama-sliding", "qwen3_5"])
def test_a_model_drafting_for_itself_is_always_right(family: str) -> None:
    """With the target's own weights every draft is accepted, so its history lost nothing."""
    target = tiny.target(family)
    drafter = ModelDrafter(tiny.MAKERS[family]())
    drafter.bind(target)
    result = generate(target, PROMPT, 25, drafter, depth=3)
    assert result.tokens == plain(target, PROMPT, 25).tokens
    assert {r.accepted for r in result.rounds} == {3}


@pytest.mark.parametrize("family", ["llama", "llama-sliding", "qwen3_5"])
def test_a_model_drafting_for_itself_is_right_between_copies(family: str) -> None:
    """Rounds in which it is not asked, and drafts that were refused meanwhile, leave its history whole."""
    target = tiny.target(family)
    drafter = ModelDrafter(tiny.MAKERS[family]())
    drafter.bind(target)
    text = plain(target, PROMPT, 30).tokens
    rounds = copied_in_turns(target, PROMPT, text, drafter)
    emitted = [text[0], *(token for done in rounds for token in done.emitted)]
    assert emitted == text[: len(emitted)]
    assert [(done.is_copy, done.accepted) for done in rounds[:4]] == [
        (True, 2), (False, 3), (True, 0), (False, 3)
    ]  # fmt: skip
    assert all(done.accepted == 3 for done in rounds if not done.is_copy)


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_another_model_changes_nothing_but_speed(depth: int) -> None:
    """Whatever an unrelated draft model proposes, the text stays the target's."""
    target = tiny.target("llama")
    drafter = ModelDrafter(tiny.qwen3_5_model())
    drafter.bind(target)
    assert generate(target, PROMPT, 20, drafter, depth=depth).tokens == plain(target, PROMPT, 20).tokens


def test_a_stored_history_is_continued() -> None:
    """Caches of a prompt's prefix, stored and taken up again, lose nothing: every draft is still right."""
    target = tiny.target("llama")
    drafter = ModelDrafter(tiny.llama_model())
    drafter.bind(target)
    text = plain(target, PROMPT, 20).tokens
    primed = drafter.make_state()
    drafter.prime(primed, PROMPT, mx.zeros((1, len(PROMPT), 64)))
    assert primed.waiting is not None
    state = drafter.make_state()
    state.caches, state.length = primed.caches, len(PROMPT) - 1
    drafter.extend(state, text[:1], primed.waiting)
    for done in (1, 4, 7):
        assert drafter.draft(state, 3, []).tolist() == text[done : done + 3]
        drafter.extend(state, text[done : done + 3], mx.zeros((1, 3, 64)))
    assert state.waiting is None


def test_it_reports_itself_as_no_mtp() -> None:
    """The kind is "model", which a policy may treat apart from MTP."""
    assert ModelDrafter(tiny.llama_model()).kind == "model"


def test_another_vocabulary_is_refused() -> None:
    """A draft model of another vocabulary is an error naming both sizes."""
    with pytest.raises(ValueError, match="80 tokens, the target 96"):
        ModelDrafter(tiny.llama_model(vocab_size=80)).bind(tiny.target("llama"))
    with pytest.raises(ValueError, match="at least 2"):
        ModelDrafter(tiny.llama_model(), block_size=1)


def test_drafting_needs_an_unread_token() -> None:
    """After priming alone there is nothing to draft from."""
    drafter = ModelDrafter(tiny.llama_model())
    state = drafter.make_state()
    drafter.prime(state, [1, 2, 3], mx.zeros((1, 3, 64)))
    with pytest.raises(ValueError, match="no generated token"):
        drafter.draft(state, 2, [])
