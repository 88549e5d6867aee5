"""A generic head whose short passes are compiled between its attentions: less to build, fewer kernels.

A pass over the few pairs of a round is mostly the building of some hundred small operations. Knows the head's
layers and mlx-lm's cache; keeps nothing of a request.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache

from speculative.generic_head import GenericHead
from speculative.llama_layer import MOST_COMPILED_ROWS, Projected, after_attention, attend, before_attention


class CompiledHead:
    """A `HeadNetwork` that computes what `head` computes, with the weights of its first pass."""

    def __init__(self, head: GenericHead) -> None:
        self._head = head
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
        return self._fuse(features) if features.shape[1] <= MOST_COMPILED_ROWS else self._head.fuse(features)

    def __call__(self, embeddings: mx.array, hiddens: mx.array, cache: list[KVCache]) -> mx.array:
        """See `GenericHead.__call__`."""
        if embeddings.shape[1] > MOST_COMPILED_ROWS:
            return self._head(embeddings, hiddens, cache)
        mask = create_attention_mask(embeddings, cache[0])
        offset = mx.array(cache[0].offset)
        projected = self._begin(embeddings, hiddens, offset)
        for index, between in enumerate(self._between):
            attended = attend(self._head.layers[index], projected, mask, cache[index])
            projected = between(projected.x, attended, offset)
        return self._end(projected.x, attend(self._head.layers[-1], projected, mask, cache[-1]))


def _beginning(head: GenericHead, layer: Any) -> Callable[..., Projected]:
    def begin(embeddings: mx.array, hiddens: mx.array, offset: mx.array) -> Projected:
        return _projected(layer, head.joined(embeddings, hiddens), offset)

    return begin


def _between(before: Any, after: Any) -> Callable[..., Projected]:
    def between(x: mx.array, attended: mx.array, offset: mx.array) -> Projected:
        return _projected(after, after_attention(before, x, attended), offset)

    return between


def _ending(head: GenericHead, layer: Any) -> Callable[..., mx.array]:
    def end(x: mx.array, attended: mx.array) -> mx.array:
        return head.norm(after_attention(layer, x, attended))

    return end


def _projected(layer: Any, x: mx.array, offset: mx.array) -> Projected:
    """A layer's first half; `offset` is the position of the first row."""
    return before_attention(layer, x, lambda heads: layer.self_attn.rope(heads, offset=offset))
