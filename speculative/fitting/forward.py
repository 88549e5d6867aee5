"""The head's forward over whole sequences for training, at every draft depth at once.

Owns the attention pattern a chained draft sees; its numbers equal the head's own cached drafting.
"""

from typing import Any

import mlx.core as mx

from speculative.fitting import fast_math
from speculative.generic_head import GenericHead

_MASKED = -1e9


def chained_outputs(head: GenericHead, fused: mx.array, embeddings: mx.array, depths: int) -> list[mx.array]:
    """Outputs [B, N, H] of the head at depth 1 .. `depths`.

    Slot j pairs a hidden with the embedding of token j + 1 and predicts token j + 2. At depth 1 the hidden is
    `fused` [B, N, H] of the target; at depth d it is the output at depth d - 1 of slot j - 1, and the slot
    attends to d - 1 chained slots (itself included) and to target slots before them. Slots below depth - 1
    have no chain and hold padding.
    """
    embedded = head.norm_embedding(embeddings)
    seen: list[list[tuple[mx.array, mx.array]]] = [[] for _ in head.layers]
    outputs: list[mx.array] = []
    hidden = fused
    for _ in range(depths):
        x = head.fc(mx.concatenate([embedded, head.norm_hidden(hidden)], axis=-1))
        for layer, past in zip(head.layers, seen, strict=True):
            x = decoder_layer(layer, x, past)
        outputs.append(head.norm(x))
        hidden = _shift(outputs[-1], 1, axis=1)
    return outputs


def decoder_layer(layer: Any, x: mx.array, past: list[tuple[mx.array, mx.array]]) -> mx.array:
    """Output [B, N, H] of one llama decoder layer for `x` [B, N, H] at the next draft depth.

    `past` holds the keys and values of the depths before and takes this one's; empty, the layer is the causal
    one of the target itself.
    """
    h = x + _attention(layer.self_attn, layer.input_layernorm(x), past)
    mlp, y = layer.mlp, layer.post_attention_layernorm(h)
    return h + mlp.down_proj(fast_math.swiglu(mlp.gate_proj(y), mlp.up_proj(y)))


def _attention(attention: Any, x: mx.array, past: list[tuple[mx.array, mx.array]]) -> mx.array:
    """Appends this depth's keys and values, each [B, G, N, D], to `past`."""
    rows, slots, _ = x.shape
    groups = attention.n_kv_heads
    repeats = attention.n_heads // groups

    def split(y: mx.array, heads: int) -> mx.array:
        return y.reshape(rows, slots, heads, -1).transpose(0, 2, 1, 3)

    queries = attention.rope(split(attention.q_proj(x), attention.n_heads)) * attention.scale
    past.append((attention.rope(split(attention.k_proj(x), groups)), split(attention.v_proj(x), groups)))
    depth = len(past)
    keys, values = past[0]
    queries = queries.reshape(rows, groups, repeats * slots, -1)
    scores = (queries @ keys.swapaxes(-1, -2)).reshape(rows, groups, repeats, slots, slots)
    position = mx.arange(slots)
    visible = position[None, :] <= position[:, None] - (depth - 1)
    scores = scores + mx.where(visible, 0.0, _MASKED)
    queries = queries.reshape(rows, groups, repeats, slots, -1)
    chained = [
        (_shift(k, depth - 1 - level, axis=2), _shift(v, depth - 1 - level, axis=2))
        for level, (k, v) in enumerate(past)
        if level
    ]
    columns = [(queries * k[:, :, None]).sum(axis=-1, keepdims=True) for k, _ in chained]
    weights = fast_math.softmax(mx.concatenate([scores, *columns], axis=-1))
    out = weights[..., :slots].reshape(rows, groups, repeats * slots, slots) @ values
    out = out.reshape(rows, groups, repeats, slots, -1)
    for i, (_, v) in enumerate(chained):
        out = out + weights[..., slots + i : slots + i + 1] * v[:, :, None]
    out = out.reshape(rows, groups * repeats, slots, -1).transpose(0, 2, 1, 3)
    return attention.o_proj(out.reshape(rows, slots, -1))


def _shift(x: mx.array, by: int, axis: int) -> mx.array:
    """Move everything `by` slots later along an axis, zeros in front."""
    if by == 0:
        return x
    before = list(x.shape)
    kept = before[axis] - by
    before[axis] = by
    return mx.concatenate([mx.zeros(before, dtype=x.dtype), mx.split(x, [kept], axis=axis)[0]], axis=axis)
