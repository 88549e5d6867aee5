"""Decoder layers whose few rows run compiled on either side of their attention: less to build per step.

Knows mlx-lm's `llama.TransformerBlock` alone; other layers stay as they are. The attention itself is left to
whatever stands in mlx-lm's place, since its shapes change with every token.
"""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.llama import TransformerBlock

from engine.cpu.rotary import Rotation, TabledRoPE
from speculative.llama_layer import MOST_COMPILED_ROWS, Projected, after_attention, attend, before_attention
from speculative.stand_in import StandIn
from speculative.target import text_model


class CompiledLayer(StandIn):
    """A llama layer with the same bytes, made of fewer calls where a block's float32 rows come."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        layer: Any = inner
        rope: TabledRoPE = layer.self_attn.rope

        def before(x: mx.array, rotation: Rotation) -> Projected:
            return before_attention(inner, x, lambda heads: rope.turned(heads, rotation))

        def after(x: mx.array, attended: mx.array) -> mx.array:
            return after_attention(inner, x, attended)

        self._before = mx.compile(before)
        self._after = mx.compile(after)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        layer: Any = self.inner
        attention = layer.self_attn
        if not _is_block(x, cache) or isinstance(attention.q_proj, StandIn):
            return layer(x, mask, cache)
        projected = Projected(*self._before(x, attention.rope.rotation(cache.offset, x.shape[1])))
        return self._after(x, attend(layer, projected, mask, cache))


def _is_block(x: mx.array, cache: Any) -> bool:
    """Whether these are few float32 rows of one sequence, whose positions are known here."""
    is_one = x.shape[0] == 1 and x.shape[1] <= MOST_COMPILED_ROWS
    return is_one and x.dtype == mx.float32 and type(getattr(cache, "offset", None)) is int


def install_compiled_layers(model: nn.Module) -> None:
    """Every llama layer of `model` with a rotation table becomes a compiled one; twice is once."""
    layers: list[nn.Module] = getattr(getattr(text_model(model), "model", None), "layers", [])
    for index, layer in enumerate(layers):
        if type(layer) is TransformerBlock and isinstance(layer.self_attn.rope, TabledRoPE):
            layers[index] = CompiledLayer(layer)
