"""A llama-type decoder layer in three parts: its attention, and what comes before and after it.

The outer parts are fit to be compiled; the attention is not, since its shapes change with every token. Knows
mlx-lm's `llama.TransformerBlock`, no model and no head.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models import llama as mlx_lm_llama

# The name its layers call, and whatever stands in its place.
_llama: Any = mlx_lm_llama

# Rows of a block, at most. Every number of rows is compiled for itself, and a prompt's chunks have any.
MOST_COMPILED_ROWS = 8

Rotate = Callable[[mx.array], mx.array]


class Projected(NamedTuple):
    """A layer's input [B, L, H] and its rotated queries, rotated keys and values [B, heads, L, D]."""

    x: mx.array
    queries: mx.array
    keys: mx.array
    values: mx.array


def before_attention(layer: Any, x: mx.array, rotate: Rotate) -> Projected:
    """What a layer does to [B, L, H] before its attention; `rotate` encodes the positions of the rows."""
    attention, y = layer.self_attn, layer.input_layernorm(x)

    def heads(rows: mx.array, count: int) -> mx.array:
        return rows.reshape(*rows.shape[:2], count, -1).transpose(0, 2, 1, 3)

    return Projected(
        x,
        rotate(heads(attention.q_proj(y), attention.n_heads)),
        rotate(heads(attention.k_proj(y), attention.n_kv_heads)),
        heads(attention.v_proj(y), attention.n_kv_heads),
    )


def attend(layer: Any, projected: Projected, mask: Any, cache: Any) -> mx.array:
    """The attention's output [B, heads, L, D]; the rows are written into `cache`, this layer's own."""
    keys, values = cache.update_and_fetch(projected.keys, projected.values)
    return _llama.scaled_dot_product_attention(
        projected.queries, keys, values, cache=cache, scale=layer.self_attn.scale, mask=mask
    )


def after_attention(layer: Any, x: mx.array, attended: mx.array) -> mx.array:
    """What a layer makes of its input [B, L, H] and its attention's output [B, heads, L, D]."""
    rows = attended.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
    x = x + layer.self_attn.o_proj(rows)
    return x + layer.mlp(layer.post_attention_layernorm(x))
