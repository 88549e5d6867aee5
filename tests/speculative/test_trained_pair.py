"""A head that really predicts its target: what rounds accept is what it should be."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from speculative.chained_head import ChainedHeadDrafter
from speculative.fitting.acceptance import Acceptance, measure, total
from speculative.fitting.data import Example
from speculative.fitting.train import Output
from speculative.generic_drafter import load_generic_drafter
from speculative.generic_head import load_generic_head
from speculative.round import Round
from speculative.target import Target
from tests.fixtures.pair import files
from tests.speculative.decoding import Generated, generate

DEPTH, ANSWER_TOKENS = 3, 48


@pytest.fixture(scope="module")
def target() -> Target:
    """The model in float32, in which the replay computes."""
    model = load_model(files.model())[0]
    model.set_dtype(mx.float32)
    return Target(model)


@pytest.fixture(scope="module")
def drafter(target: Target) -> ChainedHeadDrafter:
    """Its head, bound."""
    loaded = load_generic_drafter(files.head(), mx.float32)
    loaded.bind(target)
    return loaded


@pytest.fixture(scope="module")
def rows() -> list[list[int]]:
    """Some held-out prompts."""
    return [files.tokenizer().encode(text).ids for text in files.prompts()[::3]]


@pytest.fixture(scope="module")
def drafted(target: Target, drafter: ChainedHeadDrafter, rows: list[list[int]]) -> list[Generated]:
    """Greedy decode of each in rounds."""
    return [generate(target, row, ANSWER_TOKENS, drafter, depth=DEPTH, stop=[files.END_ID]) for row in rows]


def counted(rounds: Sequence[Round]) -> Acceptance:
    """Rounds as the replay counts them: drafts beyond the answer's end were not reached."""
    kept = [min(len(done.emitted), done.drafted) for done in rounds]
    return Acceptance(
        rounds=len(rounds),
        reached=tuple(sum(i < k for k in kept) for i in range(DEPTH)),
        accepted=tuple(sum(i < done.accepted for done in rounds) for i in range(DEPTH)),
    )


def replayed(target: Target, prompt: list[int], answer: list[int]) -> Acceptance:
    """Acceptance of the stored head by one teacher-forced pass over prompt and answer."""
    tokens = np.array([*prompt, *answer], dtype=np.int32)
    taps = np.array(target.forward(mx.array(tokens[None, :-1]), target.make_cache()).hidden)[0, :, None]
    stored = load_generic_head(files.head())
    stored.head.set_dtype(mx.float32)
    vocab = np.array(stored.draft_vocab)
    output = Output.of(target.inner.embed_tokens.weight, target.inner.embed_tokens, vocab)
    example = Example(tokens, taps, len(prompt), "source", True)
    return total(measure(stored.head, output, vocab, [example], tap_layers=(), depths=DEPTH))


def test_rounds_accept_what_a_replay_predicts(
    target: Target, rows: list[list[int]], drafted: list[Generated]
) -> None:
    """The cached round loop accepts, answer by answer, what one teacher-forced pass over it says."""
    pairs = [
        (counted(one.rounds), replayed(target, row, one.tokens))
        for row, one in zip(rows, drafted, strict=True)
    ]
    # The two sum in different orders, so a tie of two drafts may fall differently once.
    assert sum(live != predicted for live, predicted in pairs) <= 1, pairs
