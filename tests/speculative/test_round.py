"""One round: what is emitted, what is kept, what is reported, and what happens when things fail."""

from collections.abc import Sequence

import mlx.core as mx
import pytest
from msgspec.structs import replace

from speculative.round import DraftFailedError, run_round
from tests.speculative import tiny
from tests.speculative.decoding import PROMPTS, generate, greedy, plain, start
from tests.speculative.drafters import ScriptedDrafter, perfect, random_drafter, scripted

PROMPT = PROMPTS["before the window"]


def text(length: int = 24) -> list[int]:
    return plain(tiny.target("llama"), PROMPT, length).tokens


def test_a_perfect_drafter_fills_every_round() -> None:
    """With all drafts right every round emits K tokens and reports K - 1 accepted."""
    result = generate(tiny.target("llama"), PROMPT, 21, perfect(text()), depth=3)
    assert result.tokens == text(21)
    assert [(len(r.emitted), r.accepted, r.drafted) for r in result.rounds] == [(4, 3, 3)] * 5


def test_a_wrong_drafter_still_emits_one_token_per_round() -> None:
    """With every draft refused each round emits the target's own token."""
    wrong = [(t + 1) % tiny.VOCAB for t in text()]
    result = generate(tiny.target("llama"), PROMPT, 6, perfect(wrong), depth=3)
    assert result.tokens == text(6)
    assert {(len(r.emitted), r.accepted) for r in result.rounds} == {(1, 0)}


def test_depth_may_change_between_rounds() -> None:
    """Rounds of any depth, plain steps included, continue the same text and the drafter's history."""
    target = tiny.target("llama-sliding")
    prompt = PROMPTS["past the window"]
    wanted = plain(target, prompt, 30).tokens
    drafter = scripted(wanted)
    burst, _ = start(target, prompt, drafter)
    tokens = [burst.bonus]
    for depth in (3, 0, 5, 1, 0, 0, 2, 4):
        done = run_round(burst, depth, greedy)
        tokens += done.emitted
        burst = type(burst)(
            target=target, caches=burst.caches, bonus=done.bonus, position=len(tokens), drafter=drafter,
            state=burst.state,
        )  # fmt: skip
    assert tokens == wanted[: len(tokens)]
    assert burst.state.tokens == tokens
    assert burst.state.rows == len(prompt) + len(tokens)


def test_a_limit_inside_the_block_cuts_emission_and_caches() -> None:
    """Tokens after the limit are not emitted, not counted, and leave the caches as if never computed."""
    target = tiny.target("qwen3_5")
    wanted = plain(target, PROMPT, 5)
    reference = plain(target, PROMPT, 3)
    drafter = perfect(wanted.tokens)
    burst, _ = start(target, PROMPT, drafter)
    done = run_round(burst, 3, greedy, lambda emitted: 2)
    assert [burst.bonus, *done.emitted] == reference.tokens
    assert (done.accepted, done.drafted, done.logits.shape[0]) == (2, 3, 2)
    assert tiny.largest_difference(burst.caches, reference.caches) < 1e-5


def test_logits_rows_are_those_the_tokens_were_picked_from() -> None:
    """A round hands out one logits row per emitted token, whose argmax is that token."""
    result = generate(tiny.target("gemma4"), PROMPT, 15, scripted(text()), depth=4)
    assert mx.argmax(result.logits, axis=-1).tolist() == result.tokens


def test_picks_see_the_block_and_its_position() -> None:
    """The pick function gets the tokens each row was computed from and the index of the token to pick."""
    seen: list[tuple[list[int], int]] = []

    def pick(logits: mx.array, block: mx.array, position: int) -> mx.array:
        seen.append((block.tolist(), position))  # pyright: ignore[reportArgumentType]
        return mx.argmax(logits, axis=-1)

    wanted = text(9)
    generate(tiny.target("llama"), PROMPT, 9, perfect(wanted), depth=3, pick=pick)
    assert seen[1:] == [(wanted[0:4], 1), (wanted[4:8], 5)]


def test_times_are_positive_and_add_up() -> None:
    """Draft, verify and overhead times are measured apart; a plain step has no draft time."""
    result = generate(tiny.target("llama"), PROMPT, 9, random_drafter(), depth=2)
    for done in result.rounds:
        assert min(done.draft_ms, done.verify_ms, done.overhead_ms) > 0
        assert done.wall_ms == done.draft_ms + done.verify_ms + done.overhead_ms
    assert plain(tiny.target("llama"), PROMPT, 3).rounds[0].draft_ms == 0


@pytest.mark.parametrize("kept", [0, 1, 3])
@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma4"])
def test_copied_tokens_are_verified_instead_of_drafts(family: str, kept: int) -> None:
    """The drafter is not asked, right ones are kept, and its history grows by what was emitted."""
    target = tiny.target(family)
    wanted = plain(target, PROMPT, 6)
    burst, _ = start(target, PROMPT, ScriptedDrafter(_failing))
    copied = [token if i < kept else (token + 1) % tiny.VOCAB for i, token in enumerate(wanted.tokens[1:4])]
    done = run_round(replace(burst, copied=tuple(copied)), 5, greedy)
    assert [burst.bonus, *done.emitted] == wanted.tokens[: kept + 2]
    assert (done.is_copy, done.accepted, done.drafted, done.depth) == (True, kept, 3, 5)
    assert burst.state.tokens == wanted.tokens[: kept + 2]
    reference = plain(target, PROMPT, kept + 2)
    assert tiny.largest_difference(burst.caches, reference.caches) < 1e-5


def test_no_more_is_copied_than_asked_for() -> None:
    """A copy longer than the depth is cut to it."""
    burst, _ = start(tiny.target("llama"), PROMPT, ScriptedDrafter(_failing))
    done = run_round(replace(burst, copied=tuple(text(8)[1:])), 2, greedy)
    assert (list(done.emitted), done.drafted, done.depth) == (text(4)[1:], 2, 2)


def test_a_round_of_drafts_says_how_many_were_asked_for() -> None:
    """A drafter may propose fewer."""
    burst, _ = start(tiny.target("llama"), PROMPT, ScriptedDrafter(lambda done, depth: [text()[1]]))
    done = run_round(burst, 4, greedy)
    assert (done.is_copy, done.drafted, done.depth) == (False, 1, 4)
    assert list(done.emitted) == text(3)[1:]


def test_a_history_that_fails_after_a_copy_does_not_lose_the_tokens() -> None:
    """They are returned with the reason, as after drafts."""

    class Forgetful(ScriptedDrafter):
        def extend(self, state: object, tokens: Sequence[int], features: mx.array) -> None:
            if len(tokens) > 1:
                raise RuntimeError("history is full")

    burst, _ = start(tiny.target("llama"), PROMPT, Forgetful(_failing))
    done = run_round(replace(burst, copied=tuple(text(4)[1:])), 3, greedy)
    assert list(done.emitted) == text(5)[1:]
    assert done.drafter_error == "history is full"


def _failing(done: list[int], depth: int) -> list[int]:
    raise RuntimeError("no proposal")


def test_a_failing_drafter_leaves_the_sequence_decodable() -> None:
    """When drafting raises, nothing was emitted and plain decode goes on from where it was."""
    target = tiny.target("qwen3_5")
    wanted = plain(target, PROMPT, 4).tokens
    burst, _ = start(target, PROMPT, ScriptedDrafter(_failing))
    with pytest.raises(DraftFailedError, match="no proposal"):
        run_round(burst, 3, greedy)
    assert run_round(burst, 0, greedy).emitted == (wanted[1],)


def test_a_failing_history_does_not_lose_the_tokens() -> None:
    """When the drafter cannot take in a round's tokens they are still returned, with the reason."""

    class Forgetful(ScriptedDrafter):
        def extend(self, state: object, tokens: Sequence[int], features: mx.array) -> None:
            if len(tokens) > 1:
                raise RuntimeError("history is full")

    wanted = text(5)
    drafter = Forgetful(lambda done, depth: wanted[1 : 1 + depth])
    burst, _ = start(tiny.target("llama"), PROMPT, drafter)
    done = run_round(burst, 3, greedy)
    assert list(done.emitted) == wanted[1:5]
    assert done.drafter_error == "history is full"


@pytest.mark.parametrize("family", ["llama-sliding", "qwen3_5", "glm4_moe_lite"])
def test_a_failing_pick_undoes_the_block(family: str) -> None:
    """When choosing tokens raises, the caches are as before the round."""
    target = tiny.target(family)
    drafter = random_drafter()
    burst, _ = start(target, PROMPTS["past the window"], drafter)
    reference, _ = start(target, PROMPTS["past the window"], drafter)

    def pick(logits: mx.array, block: mx.array, position: int) -> mx.array:
        raise KeyError("sampler")

    with pytest.raises(KeyError):
        run_round(burst, 3, pick)
    assert tiny.largest_difference(burst.caches, reference.caches) == 0.0


@pytest.mark.parametrize(("depth", "with_drafter"), [(-1, True), (2, False)])
def test_illegal_depths_are_refused(depth: int, with_drafter: bool) -> None:
    """Depth is 0 or more, and 0 without a drafter."""
    burst, _ = start(tiny.target("llama"), PROMPT, random_drafter() if with_drafter else None)
    with pytest.raises(ValueError, match="legal is 0"):
        run_round(burst, depth, greedy)
