"""A generic head whose short passes are compiled between its attentions: less to build, fewer kernels.

A pass over the few pairs of a round is mostly the building of some hundred small operations. Knows the head's
layers and mlx-lm's cache; keeps nothing of a request.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models import llama as mlx_lm_llama
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache

from speculative.generic_head import GenericHead

# The names a llama's own layers call, and whatever stands in their places.
_llama: Any = mlx_lm_llama

# A block's pairs, at most. Every length is compiled for itself, and a prompt's chunks come in any length.
_LONGEST = 8


class _Projected(NamedTuple):
    """A layer's input [1, L, H] and its rotated queries, keys and its values [1, heads, L, D]."""

    x: mx.array
    queries: mx.array
    keys: mx.array
    values: mx.array


class CompiledHead:
    """A `HeadNetwork` that computes what `head` computes, with the weights of its first pass."""

    def __init__(self, head: GenericHead) -> None:
        self._head = head
        self._attentions = [layer.self_attn for layer in head.layers]
        first, *others = head.layers
        self._fuse = mx.compile(head.fuse)
        self._begin = mx.compile(_beginning(head, first))
        self._between = [
            mx.compile(_between(before, after)) for before, after in zip(head.layers, others, strict=False)
        ]
        self._end = mx.compile(_ending(head, head.layers[-1]))

    def make_cache(self) -> list[KVCache]:
        """See `GenericHead.make_cache`."""
        return self._head.make_cache()

    def parameters(self) -> dict[str, Any]:
        """The head's weights."""
        return self._head.parameters()

    def fuse(self, features: mx.array) -> mx.array:
        """See `GenericHead.fuse`."""
        return self._fuse(features) if features.shape[1] <= _LONGEST else self._head.fuse(features)

    def __call__(self, embeddings: mx.array, hiddens: mx.array, cache: list[KVCache]) -> mx.array:
        """See `GenericHead.__call__`."""
        if embeddings.shape[1] > _LONGEST:
            return self._head(embeddings, hiddens, cache)
        mask = create_attention_mask(embeddings, cache[0])
        offset = mx.array(cache[0].offset)
        projected = self._begin(embeddings, hiddens, offset)
        for index, between in enumerate(self._between):
            attended = self._attended(index, projected, mask, cache)
            projected = between(projected.x, attended, offset)
        return self._end(projected.x, self._attended(-1, projected, mask, cache))

    def _attended(self, index: int, projected: _Projected, mask: Any, cache: list[KVCache]) -> mx.array:
        attention, layer_cache = self._attentions[index], cache[index]
        keys, values = layer_cache.update_and_fetch(projected.keys, projected.values)
        return _llama.scaled_dot_product_attention(
            projected.queries, keys, values, cache=layer_cache, scale=attention.scale, mask=mask
        )


def _beginning(head: GenericHead, layer: Any) -> Callable[..., _Projected]:
    def begin(embeddings: mx.array, hiddens: mx.array, offset: mx.array) -> _Projected:
        return _projected(layer, head.joined(embeddings, hiddens), offset)

    return begin


def _between(before: Any, after: Any) -> Callable[..., _Projected]:
    def between(x: mx.array, attended: mx.array, offset: mx.array) -> _Projected:
        return _projected(after, _finished(before, x, attended), offset)

    return between


def _ending(head: GenericHead, layer: Any) -> Callable[..., mx.array]:
    def end(x: mx.array, attended: mx.array) -> mx.array:
        return head.norm(_finished(layer, x, attended))

    return end


def _projected(layer: Any, x: mx.array, offset: mx.array) -> _Projected:
    """What a llama layer does before its attention; `offset` is the position of the first row."""
    attention, y = layer.self_attn, layer.input_layernorm(x)

    def heads(rows: mx.array, count: int) -> mx.array:
        return rows.reshape(*rows.shape[:2], count, -1).transpose(0, 2, 1, 3)

    return _Projected(
        x,
        attention.rope(heads(attention.q_proj(y), attention.n_heads), offset=offset),
        attention.rope(heads(attention.k_proj(y), attention.n_kv_heads), offset=offset),
        heads(attention.v_proj(y), attention.n_kv_heads),
    )


def _finished(layer: Any, x: mx.array, attended: mx.array) -> mx.array:
    """What a llama layer does after its attention, whose output is [1, heads, L, D]."""
    rows = attended.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
    x = x + layer.self_attn.o_proj(rows)
    return x + layer.mlp(layer.post_attention_layernorm(x))
