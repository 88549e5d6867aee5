"""Eager layers: the model computes the same, reads the same, and is left alone where nothing is gained."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from engine.cpu.eager_layers import EagerLayer, install_eager_layers
from speculative.selection import Selection, selected
from speculative.taps import TappedLayer
from speculative.target import Target, text_model
from tests.speculative import tiny
from tests.speculative.decoding import generate, plain
from tests.speculative.drafters import scripted

pytestmark = pytest.mark.skipif(
    mx.default_device().type != mx.DeviceType.cpu, reason="layers are eager on CPUs alone"
)


def layers_of(model: Any) -> list[Any]:
    """The decoder layers that the model runs."""
    return text_model(model).model.layers


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_bytes_are_those_of_the_model_as_it_was(family: str) -> None:
    """Plain decode, rounds and rewinds of every family give the same tokens and logits."""
    prompt = tiny.prompt(2 * tiny.WINDOW + 3)
    wanted = plain(tiny.target(family), prompt, 12)
    model = tiny.MAKERS[family]()
    install_eager_layers(model)
    assert all(isinstance(layer, EagerLayer) for layer in layers_of(model))
    target = Target(model)
    got = plain(target, prompt, 12)
    assert got.tokens == wanted.tokens
    assert tiny.same_bytes(got.logits, wanted.logits)
    reference = generate(tiny.target(family), prompt, 12, scripted(wanted.tokens), depth=3)
    rounds = generate(target, prompt, 12, scripted(wanted.tokens), depth=3)
    assert rounds.tokens == reference.tokens
    assert tiny.same_bytes(rounds.logits, reference.logits)


def test_a_layers_output_is_launched_before_the_next_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch per layer, in order, each of what that layer returns."""
    launched: list[mx.array] = []
    honest = mx.async_eval

    def launch(*arrays: mx.array) -> None:
        launched.extend(arrays)
        honest(*arrays)

    model = tiny.llama_model()
    install_eager_layers(model)
    outputs: list[mx.array] = []
    for layer in layers_of(model):
        inner, eager = layer.inner, layer
        hidden = mx.ones((1, 3, 64)) if not outputs else outputs[-1]
        monkeypatch.setattr(mx, "async_eval", launch)
        outputs.append(eager(hidden, None, None))
        assert launched[-1] is outputs[-1]
        assert len(launched) == len(outputs)
        monkeypatch.undo()
        assert tiny.same_bytes(outputs[-1], inner(hidden, None, None))


def test_installing_twice_is_once() -> None:
    """No layer is wrapped in two."""
    model = tiny.llama_model()
    install_eager_layers(model)
    once = list(layers_of(model))
    install_eager_layers(model)
    assert all(a is b for a, b in zip(layers_of(model), once, strict=True))


def test_a_layer_reads_as_itself() -> None:
    """Its parts, settings and parameters are found where they were; what it lacks is an AttributeError."""
    model = tiny.sliding_llama_model()
    inner = list(layers_of(model))
    parameters = [value for _, value in tree_flatten(model.parameters())]
    install_eager_layers(model)
    for layer, before in zip(layers_of(model), inner, strict=True):
        assert layer.inner is before
        assert layer.self_attn is before.self_attn
        assert layer.use_sliding is before.use_sliding
        assert not hasattr(layer, "no_such_part")
    after = [value for _, value in tree_flatten(model.parameters())]
    assert all(a is b for a, b in zip(after, parameters, strict=True))


def test_a_model_without_layers_is_left_alone() -> None:
    """What has no layers has nothing to hand over."""
    model = nn.Linear(4, 4)
    install_eager_layers(model)
    assert model(mx.ones((1, 4))).shape == (1, 4)


def test_taps_show_eager_layers_outputs() -> None:
    """A tap around an eager layer sees what one around the bare layer sees."""
    tokens = mx.array([tiny.prompt(5)])
    bare, eager = Target(tiny.llama_model()), tiny.llama_model()
    install_eager_layers(eager)
    tapped = Target(eager)
    for target in (bare, tapped):
        target.tap([0, 1, 2])
    assert isinstance(tapped.layers[0], TappedLayer)
    assert isinstance(tapped.layers[0].inner, EagerLayer)
    assert tapped.layers[0].self_attn is tapped.layers[0].inner.inner.self_attn
    got, wanted = (target.forward(tokens, target.make_cache()) for target in (tapped, bare))
    assert tiny.same_bytes(got.features, wanted.features)
    assert tiny.same_bytes(got.logits, wanted.logits)


def test_selections_reach_into_eager_layers_and_are_undone() -> None:
    """Padded linear layers are put in and taken out beneath the wrapper."""
    model = tiny.llama_model()
    install_eager_layers(model)
    target = Target(model)
    tokens = mx.array([[3]])
    before = target.forward(tokens, target.make_cache()).logits
    linear = layers_of(model)[0].mlp.up_proj
    with selected(target, Selection(name="row_invariant", attention="row", tile=4)):
        assert layers_of(model)[0].mlp.up_proj is not linear
        padded = target.forward(tokens, target.make_cache()).logits
        assert mx.allclose(padded, before, atol=1e-4).item()
    assert layers_of(model)[0].mlp.up_proj is linear
    assert tiny.same_bytes(target.forward(tokens, target.make_cache()).logits, before)
