"""Chains of drafts end where the head is in doubt, and never change the text."""

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from speculative.chained_head import ChainedHeadDrafter
from speculative.detect import DraftOptions, load_drafter
from speculative.draft_stop import confidence, ends_chain
from speculative.generic_drafter import generic_drafter
from speculative.head_state import HeadState
from speculative.output_rows import Best
from speculative.target import Target
from tests.speculative import tiny
from tests.speculative.decoding import PROMPTS, generate, plain
from tests.speculative.test_chained_head import PROMPT, bound, head_files, teacher_forced

DEPTH = 5


def logits_of(likely: float) -> mx.array:
    """Logits [1, 1, V] whose largest has the probability `likely`, which must be that of no tie."""
    others = 100
    return mx.array([[[math.log(likely), *[math.log((1 - likely) / others)] * others]]])


def unsure_from(likely: list[float]) -> tuple[ChainedHeadDrafter, HeadState]:
    """A head as confident as told at each step of its next chain, and a history to draft from."""
    drafter = bound()
    state = teacher_forced(drafter, PROMPT)
    output, steps = drafter._output, iter(likely)
    assert output is not None
    honest = output.best
    output.best = lambda *given: Best(honest(*given).ids, logits_of(next(steps)))
    return drafter, state


@pytest.mark.parametrize(
    ("likely", "length"),
    [
        ([0.9, 0.8, 0.7, 0.6, 0.5], 5),
        ([0.9, 0.8, 0.4, 0.9, 0.9], 3),
        ([0.4, 0.9, 0.9, 0.9, 0.9], 1),
        ([0.9, 0.9, 0.9, 0.9, 0.1], 5),
        ([0.9, 0.49, 0.1, 0.1, 0.1], 2),
    ],
)
def test_a_chain_ends_with_its_first_doubtful_draft(likely: list[float], length: int) -> None:
    """That draft is still proposed, nothing after it is, and those that are do not depend on the stop."""
    whole = bound().draft(teacher_forced(bound(), PROMPT), DEPTH, []).tolist()
    drafter, state = unsure_from(likely)
    drafter.confidence_stop = 0.5
    assert drafter.draft(state, DEPTH, []).tolist() == whole[:length]


def test_without_a_threshold_nobody_asks_how_likely_a_draft_is() -> None:
    """A chain runs to its full depth, and confidence is not even computed."""
    untouchable: Any = None
    assert not ends_chain(untouchable, 0.0)
    drafter, state = unsure_from([0.02] * DEPTH)
    assert drafter.draft(state, DEPTH, []).shape == (DEPTH,)


def test_a_draft_as_likely_as_the_threshold_is_no_doubt() -> None:
    """Only what lies below ends the chain."""
    even = mx.zeros((1, 1, 2))
    assert not ends_chain(even, 0.5)
    assert ends_chain(even, 0.501)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_confidence_is_the_likeliest_tokens_probability(dtype: mx.Dtype) -> None:
    """Also of logits too coarse to hold the sum they are compared with."""
    logits = mx.array([[20.0, 19.0, 18.0, -math.inf], [3.0, 3.0, 3.0, 3.0]]).astype(dtype)
    wanted = 1 / (1 + math.exp(-1) + math.exp(-2))
    assert confidence(logits).tolist() == pytest.approx([wanted, 0.25], rel=1e-4)


def test_confidence_is_among_the_tokens_that_compete() -> None:
    """A head with a vocabulary of its own judges by that."""
    drafter = bound(head_files([90, 3, 41]))
    state = teacher_forced(drafter, PROMPT)
    assert state.last is not None
    assert drafter._output is not None
    row = tiny.target("llama").logits(state.last)[0, 0]
    wanted = mx.softmax(mx.array([row[i] for i in (90, 3, 41)])).max().item()
    assert confidence(drafter._output.best(state.last).logits).item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("family", ["llama", "llama-sliding", "qwen3_5"])
def test_rounds_of_stopped_chains_give_the_text_of_plain_decode(family: str, prompt: str) -> None:
    """A round that asked for more verifies what there is, and the head's history goes on after it."""
    target = tiny.target(family)
    drafter = generic_drafter(head_files())
    drafter.bind(target)
    drafter.confidence_stop = 0.5
    result = generate(target, PROMPTS[prompt], 16, drafter, depth=4)
    assert result.tokens == plain(target, PROMPTS[prompt], 16).tokens
    assert {done.depth for done in result.rounds} == {4}
    assert all(1 <= done.drafted <= 4 for done in result.rounds)
    assert min(done.drafted for done in result.rounds) < 4


def test_a_stop_for_a_drafter_that_knows_none_is_refused(tiny_checkpoint: Path) -> None:
    """Ignoring it would leave the operator to believe that chains end early."""
    target = Target(load_model(tiny_checkpoint)[0])
    with pytest.raises(ValueError, match=r"confidence_stop is 0\.3; .* legal is 0"):
        load_drafter(tiny_checkpoint, target, DraftOptions(kind="model", confidence_stop=0.3))
