"""The history of Inkling's MTP depths: one cache per depth, each a token behind the one before.

Slot i of depth j pairs the previous depth's output (the target's feature at depth 0) with token i + j + 1.
Owns that bookkeeping; knows no network. Everything lies in `caches`, so that a stored copy is complete.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList

from speculative.inkling_model import make_layer_cache


def _joined(left: mx.array | None, right: mx.array) -> mx.array:
    return right if left is None else mx.concatenate([left, right], axis=1)


class InklingState:
    """One cache per depth and, in one more, the rows the next depth has yet to read and the latest tokens."""

    def __init__(self, depths: int) -> None:
        self.caches: list[Any] = [*(make_layer_cache() for _ in range(depths)), ArraysCache(depths + 1)]
        self.length = 0
        self.waiting: mx.array | None = None

    @property
    def num_depths(self) -> int:
        """How many depths there are."""
        return len(self.caches) - 1

    def cache(self, depth: int) -> CacheList:
        """The cache of a depth."""
        return self.caches[depth]

    def count(self, depth: int) -> int:
        """How many slots of a depth the target has confirmed."""
        return self.caches[depth][0].offset

    def unread(self, depth: int) -> mx.array | None:
        """Confirmed output rows [1, n, H] of a depth that the next one has not read; the last of depth 0."""
        return self.caches[-1][depth]

    @property
    def tokens(self) -> mx.array | None:
        """The latest confirmed tokens, int32 [1, n], as many as some depth still needs."""
        return self.caches[-1][self.num_depths]

    def append(self, ids: mx.array, rows: mx.array) -> None:
        """Depth 0 has read the tokens ids [1, L] and given rows [1, L, H]."""
        self.length += ids.shape[1]
        self.caches[-1][0] = _joined(self.unread(0), rows)
        self.caches[-1][self.num_depths] = _joined(self.tokens, ids.astype(mx.int32))

    def advance(self, depth: int, rows: mx.array) -> None:
        """A depth above 0 has read the oldest unread rows of the one before, giving rows [1, n, H]."""
        store, read = self.caches[-1], rows.shape[1]
        store[depth - 1] = store[depth - 1][:, read:]
        store[depth] = _joined(self.unread(depth), rows)

    def forget(self) -> None:
        """Drops the rows and tokens that no depth needs any more."""
        store = self.caches[-1]
        last = self.num_depths - 1
        if store[last] is not None:
            store[last] = store[last][:, -1:]
        newest = self.count(0)
        behind = max(newest - self.count(j) - j for j in range(self.num_depths))
        store[self.num_depths] = store[self.num_depths][:, -max(1, behind) :]
