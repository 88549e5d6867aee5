"""The contract probe: what it measures, what it chooses, and that the target is left alone."""

from typing import Any

import mlx.core as mx
import pytest

from speculative import contract as module
from speculative.contract import Agreement, Contract, ContractProbe, probe_contracts, sample_text
from speculative.qwen_drafter import build_head, qwen_drafter
from speculative.qwen_head import QwenHead
from tests.speculative import tiny
from tests.speculative.qwen_files import (
    config_of,
    random_head,
    transparent_head,
    transparent_target,
    zero_centred,
)

TEXT = tiny.prompt(23)


def builder(tensors: dict[str, mx.array]) -> Any:
    return lambda contract: build_head(config_of(), tensors, mx.float32, norm_shift=contract.norm_shift)


def test_the_contract_a_head_was_made_for_agrees_best() -> None:
    """A zero-centred head agrees in every position once its norms are shifted, and hardly ever before."""
    target = transparent_target()
    build = builder(zero_centred(transparent_head(target)))
    probe = probe_contracts(target, build, [Contract(), Contract(norm_shift=True)], TEXT)
    plain, shifted = probe.agreements
    assert shifted == Agreement(contract=Contract(norm_shift=True), agreed=22, rows=22)
    assert plain.rate < 0.4
    assert probe.best == shifted


@pytest.mark.parametrize("chunk", [4, 256])
def test_agreement_counts_first_drafts_the_target_confirms(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agreement is what drafting one token after every token of the text would have had accepted."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    target = tiny.target("qwen3_5")
    text = sample_text(target, 40, seed=1)
    features = target.forward(mx.array([text]), target.make_cache())
    choices = mx.argmax(features.logits[0], axis=-1).tolist()
    drafter = qwen_drafter(random_head(), config_of())
    drafter.bind(target)
    state, agreed = drafter.make_state(), 0
    for i in range(len(text) - 1):
        drafter.extend(state, [text[i + 1]], features.hidden[:, i : i + 1])
        agreed += drafter.draft(state, 1, []).tolist() == [choices[i + 1]]  # pyright: ignore[reportIndexIssue]
    (agreement,) = probe_contracts(target, lambda _: random_head(), [Contract()], text).agreements
    assert (agreement.agreed, agreement.rows) == (agreed, 39)


class Reader(QwenHead):
    """A head that remembers the hiddens it was given."""

    def fuse(self, features: mx.array) -> mx.array:
        self.seen = features
        return features


def test_taps_are_before_and_after_the_final_norm() -> None:
    """The "pre" tap is what the target's final norm turns into the "post" tap."""
    target: Any = tiny.target("qwen3_5")
    heads = {tap: Reader(config_of()) for tap in ("post", "pre")}
    candidates = [Contract(tap="post"), Contract(tap="pre")]
    probe_contracts(target, lambda contract: heads[contract.tap], candidates, TEXT)
    normed = target.model.language_model.model.norm(heads["pre"].seen)
    assert mx.allclose(normed, heads["post"].seen, atol=1e-5).item()
    assert not mx.allclose(heads["pre"].seen, heads["post"].seen, atol=1e-2).item()


def test_the_target_is_left_without_taps() -> None:
    """After a probe, a failed one included, features are the hidden after the final norm again."""
    target = tiny.target("qwen3_5")

    def build(contract: Contract) -> QwenHead:
        raise RuntimeError("no such head")

    with pytest.raises(RuntimeError):
        probe_contracts(target, build, [Contract(tap="pre")], TEXT)
    out = target.forward(mx.array([TEXT]), target.make_cache())
    assert out.features is out.hidden


def test_of_equals_the_first_is_best() -> None:
    """Candidates are given in order of preference, which decides a tie."""
    agreements = [Agreement(contract=Contract(norm_shift=shift), agreed=3, rows=9) for shift in (True, False)]
    probe = ContractProbe(agreements=tuple(agreements))
    assert probe.best.contract == Contract(norm_shift=True)


def test_sampled_text_is_repeatable() -> None:
    """Text to probe with is the same for the same seed, has the asked length and is no loop of one token."""
    target = tiny.target("qwen3_5")
    text = sample_text(target, 12)
    assert text == sample_text(target, 12)
    assert text != sample_text(target, 12, seed=1)
    assert len(text) == 12
    assert all(0 <= token < tiny.VOCAB for token in text)


@pytest.mark.parametrize(
    ("candidates", "tokens", "message"), [([], TEXT, "at least 1"), ([Contract()], [1, 2], "over 2 tokens")]
)
def test_nothing_to_compare_is_an_error(candidates: list[Contract], tokens: list[int], message: str) -> None:
    """A probe needs a candidate and text."""
    with pytest.raises(ValueError, match=message):
        probe_contracts(tiny.target("qwen3_5"), lambda _: random_head(), candidates, tokens)
