"""The live audit: silent where rounds are exact, precise where they are not, and without a trace."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from msgspec.structs import replace

from speculative.audit import Mismatch, audit_round, start_of
from speculative.round import Burst, Round, run_round
from speculative.selection import selected
from speculative.target import Forward, Target
from tests.speculative import tiny
from tests.speculative.decoding import PROMPTS, greedy, plain, start
from tests.speculative.drafters import perfect, scripted
from tests.speculative.test_matrix import exact_selection, prefix

ROUNDS = 5
LENGTH = 4 * ROUNDS + 1


def rounds(
    burst: Burst, audit: bool, after_round: Callable[[list[Any]], None] = lambda caches: None
) -> tuple[list[Round], list[Mismatch | None], list[Any]]:
    """Some rounds of three drafts: what they did, what their audits found, and the caches at the end."""
    done, found = [], []
    for _ in range(ROUNDS):
        before = start_of(burst.caches, burst.bonus, burst.position)
        done.append(run_round(burst, 3, greedy))
        after_round(burst.caches)
        if audit:
            found.append(audit_round(burst.target, before, done[-1], burst.caches, greedy))
        burst = replace(burst, bonus=done[-1].bonus, position=burst.position + len(done[-1].emitted))
    return done, found, burst.caches


@pytest.mark.parametrize("context", PROMPTS)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_an_exact_round_passes_and_nothing_shows_that_it_was_audited(family: str, context: str) -> None:
    """Recurrent, rotating and latent caches included: no mismatch, and tokens, logits, caches as without."""
    target, prompt = tiny.target(family), PROMPTS[context]
    with selected(target, exact_selection(family)):
        text = plain(target, prompt, LENGTH, prefix=prefix(family, context)).tokens
        results = []
        for audit in (False, True):
            burst, _ = start(target, prompt, scripted(text), prefix=prefix(family, context))
            results.append(rounds(burst, audit))
    (done, _, caches), (audited, found, audited_caches) = results
    assert found == [None] * ROUNDS
    assert {item.accepted for item in audited} >= {1, 2}
    assert [item.emitted for item in audited] == [item.emitted for item in done]
    assert all(tiny.same_bytes(a.logits, b.logits) for a, b in zip(audited, done, strict=True))
    assert tiny.largest_difference(audited_caches, caches) == 0.0


class Corrupted(Target):
    """A target that adds something to row 1 of every verify block."""

    def __init__(self, model: nn.Module, change: Sequence[float]) -> None:
        super().__init__(model)
        self._change = mx.array(change)

    def verify(self, tokens: mx.array, block: Any) -> Forward:
        """As the target does, with one row changed."""
        out = super().verify(tokens, block)
        rows = mx.zeros_like(out.logits)
        rows[:, 1, : self._change.shape[0]] = self._change
        return out._replace(logits=out.logits + rows)


@pytest.mark.parametrize(("change", "changes_token"), [([1e-3], False), ([0.0, 1e4], True)])
def test_a_verify_block_that_differs_is_found(change: Sequence[float], changes_token: bool) -> None:
    """The sentence names the first differing position and counts bytes; whether a token changed is told."""
    target = Corrupted(tiny.llama_model(), change)
    text = plain(target, PROMPTS["before the window"], LENGTH).tokens
    burst, _ = start(target, PROMPTS["before the window"], perfect(text))
    _, found, _ = rounds(burst, True)
    first = found[0]
    assert first is not None
    assert first.changes_token is changes_token
    before, _, after = first.reason.partition(" in ")
    assert before == "a live audit found that verify block position 1 differs from the single-token chain"
    assert 1 <= int(after.split()[0]) <= 4
    assert after.endswith(f"of {4 * tiny.VOCAB} logit bytes")


def test_caches_that_were_rewound_wrongly_are_found() -> None:
    """A round may give the right logits and leave a wrong state: the step after it tells."""

    def spoil(caches: list[Any]) -> None:
        caches[0].values = caches[0].values * 1.001

    target = tiny.target("llama")
    text = plain(target, PROMPTS["before the window"], LENGTH).tokens
    burst, _ = start(target, PROMPTS["before the window"], perfect(text))
    _, found, _ = rounds(burst, True, spoil)
    assert found[0] is not None
    assert found[0].reason.startswith(
        "a live audit found that decode after a rewind differs from the single-token"
    )
