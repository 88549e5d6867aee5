"""Compiled layers: the bytes of the layers they stand for, and out of the way where they do not apply."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import BatchKVCache

from engine.cpu.compiled_layers import CompiledLayer, install_compiled_layers
from engine.cpu.normalisation import install_compiled_norms
from engine.cpu.rotary import install_rotation_tables
from speculative.selection import Selection, selected
from speculative.target import Target
from speculative.tiling import TiledLinear
from tests.speculative import tiny
from tests.speculative.decoding import generate, plain
from tests.speculative.drafters import scripted

pytestmark = pytest.mark.skipif(
    mx.default_device().type != mx.DeviceType.cpu, reason="layers are compiled on CPUs alone"
)


def prepared(family: str) -> Any:
    """A model as it is just before its layers are compiled."""
    model = tiny.MAKERS[family]()
    install_compiled_norms(model)
    install_rotation_tables(model)
    return model


def compiled(family: str) -> Any:
    """The same model, with every layer that can be compiled."""
    model = prepared(family)
    install_compiled_layers(model)
    return model


@pytest.mark.parametrize("family", ["llama", "llama-sliding"])
def test_bytes_are_those_of_the_layers_as_they_were(family: str) -> None:
    """Prompts, plain decode, rounds and rewinds give the same tokens and logits."""
    prompt = tiny.prompt(2 * tiny.WINDOW + 3)
    before, after = Target(prepared(family)), Target(compiled(family))
    assert all(isinstance(layer, CompiledLayer) for layer in after.layers)
    wanted = plain(before, prompt, 12)
    got = plain(after, prompt, 12)
    assert got.tokens == wanted.tokens
    assert tiny.same_bytes(got.logits, wanted.logits)
    reference = generate(before, prompt, 12, scripted(wanted.tokens), depth=3)
    rounds = generate(after, prompt, 12, scripted(wanted.tokens), depth=3)
    assert rounds.tokens == reference.tokens
    assert tiny.same_bytes(rounds.logits, reference.logits)


@pytest.mark.parametrize("family", sorted(set(tiny.FAMILIES) - {"llama", "llama-sliding"}))
def test_layers_of_other_families_are_left_alone(family: str) -> None:
    """Only what is mlx-lm's own llama layer is known well enough to take apart."""
    assert not any(isinstance(module, CompiledLayer) for module in compiled(family).modules())


def test_a_block_runs_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One to eight rows of one sequence never reach the layer itself; a prompt's chunk and a batch do."""
    model = compiled("llama")
    layer: Any = model.layers[0]
    reached: list[tuple[int, ...]] = []
    honest = type(layer.inner).__call__

    def call(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> Any:
        reached.append(x.shape)
        return honest(self, x, *args, **kwargs)

    monkeypatch.setattr(type(layer.inner), "__call__", call)
    cache = Target(model).make_cache()[0]
    for rows in (1, 3, 8, 9):
        mx.eval(layer(mx.ones((1, rows, 64)), "causal" if rows > 1 else None, cache))
    assert reached == [(1, 9, 64)]
    mx.eval(layer(mx.ones((2, 1, 64)), None, BatchKVCache([0, 0])))
    mx.eval(layer(mx.ones((1, 1, 64)), None, None))
    assert reached == [(1, 9, 64), (2, 1, 64), (1, 1, 64)]


def test_padded_linear_layers_are_not_compiled_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection that comes after the layers were compiled acts on them, and its end is felt too."""
    target = Target(compiled("llama"))
    step = mx.array([[3]])
    before = target.forward(step, target.make_cache()).logits
    padded: list[int] = []
    honest = TiledLinear.__call__
    monkeypatch.setattr(TiledLinear, "__call__", lambda self, x: padded.append(x.shape[1]) or honest(self, x))
    with selected(target, Selection(name="row_invariant", attention="row", tile=4)):
        assert mx.allclose(target.forward(step, target.make_cache()).logits, before, atol=1e-4).item()
    assert padded == [1] * 7 * len(target.layers)
    assert tiny.same_bytes(target.forward(step, target.make_cache()).logits, before)


def test_installing_twice_is_once() -> None:
    """No layer is wrapped in two."""
    model = compiled("llama")
    once = list(model.layers)
    install_compiled_layers(model)
    assert all(a is b for a, b in zip(model.layers, once, strict=True))
