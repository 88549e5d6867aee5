"""The tap on mlx-lm models: hidden, logits, features."""

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import cohere

from speculative.target import Target
from tests.speculative import tiny


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_head_of_hidden_is_the_model(family: str) -> None:
    """Hidden and output head together give the bytes the model itself returns."""
    target = tiny.target(family)
    tokens = mx.array([tiny.prompt(6)])
    out = target.forward(tokens, target.make_cache())
    assert out.hidden.shape == (1, 6, target.hidden_size)
    assert tiny.same_bytes(out.logits, target.model(tokens, cache=target.make_cache()))
    assert tiny.same_bytes(target.logits(out.hidden[:, -1:]), out.logits[:, -1:])


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_embedding_is_the_tables_rows(family: str) -> None:
    """Embedding looks up unscaled rows; the family's scale is told apart."""
    target = tiny.target(family)
    rows = target.embed(mx.array([[3, 5]]))
    assert rows.shape == (1, 2, target.hidden_size)
    assert target.embed_scale == (8.0 if family == "gemma4" else 1.0)
    assert target.vocab_size == tiny.VOCAB


@pytest.mark.parametrize("family", ["llama", "gemma4"])
def test_features_are_the_tapped_layers(family: str) -> None:
    """Tapping layers concatenates their outputs, and the last index is the hidden after the final norm."""
    target = Target(tiny.MAKERS[family]())
    count = len(target.layers)
    target.tap((0, count - 1, count))
    out = target.forward(mx.array([[1, 2, 3]]), target.make_cache())
    first, last, final = mx.split(out.features, 3, axis=-1)
    assert tiny.same_bytes(final, out.hidden)
    assert mx.allclose(_final_norm(target)(last), out.hidden, atol=1e-6).item()
    assert not mx.allclose(first, last).item()


def _final_norm(target: Target) -> nn.Module:
    return getattr(target.model, "language_model", target.model).model.norm


def test_unknown_tap_layer_is_refused() -> None:
    """A tap index past the final hidden is an error naming the range."""
    with pytest.raises(ValueError, match="legal is 0 to 2"):
        Target(tiny.llama_model()).tap((3,))


def test_a_family_that_scales_its_logits_is_refused() -> None:
    """A model whose logits are not head(hidden) is refused instead of being tapped wrongly."""
    args = cohere.ModelArgs(
        model_type="cohere", hidden_size=32, num_hidden_layers=1, intermediate_size=32, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=16, logit_scale=0.5,
    )  # fmt: skip
    with pytest.raises(ValueError, match="not what the model returns"):
        Target(tiny.randomise(cohere.Model(args)))


def test_a_model_without_inner_model_is_refused() -> None:
    """Something that is no mlx-lm language model is refused with its name."""
    with pytest.raises(ValueError, match="Linear"):
        Target(nn.Linear(2, 2))
