"""Exact rewind of a target's caches: opening a block of K rows, keeping a prefix of it, copying, trimming.

The one place that says which cache class is rewound how. Knows neither drafters nor rounds.
"""

import copy
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from msgspec import Struct

from speculative.hooks import BlockContext
from speculative.kv_block import RingBlock, RowKVBlock, RowRingBlock, TrimBlock
from speculative.recurrent_block import RecurrentBlock
from speculative.tiled_attention import TileKVBlock

AttentionMode = Literal["block", "row", "tile"]
REWINDABLE = (KVCache, RotatingKVCache, ArraysCache, CacheList, QuantizedKVCache)


class Attention(Struct, frozen=True):
    """How the rows of a block are attended to.

    "block" as mlx-lm does it, "row" as that many one-row decodes, "tile" in tiles of `tile` rows (0: of as
    many as there are), which a single step uses as well.
    """

    mode: AttentionMode = "block"
    tile: int = 0


class CacheBlock(Protocol):
    """One cache during a verify forward: `view` is what the model is given."""

    view: Any

    def keep(self, rows: int) -> None:
        """Leaves the cache as token-by-token decode of the first `rows` rows would have; once per block."""
        ...


class ListBlock:
    """A CacheList: every member is a block of its own."""

    def __init__(self, members: Sequence[CacheBlock]) -> None:
        self.view = CacheList(*(member.view for member in members))
        self._members = members

    def keep(self, rows: int) -> None:
        """Keeps the first `rows` rows in every member."""
        for member in self._members:
            member.keep(rows)


def why_not_rewindable(caches: Sequence[Any]) -> str | None:
    """The reason why these caches cannot be rewound exactly, or None."""
    for cache in caches:
        if type(cache) not in REWINDABLE:
            return f"no exact rewind for a cache of type {type(cache).__name__}"
        if isinstance(cache, CacheList) and (reason := why_not_rewindable(cache.caches)):
            return reason
    return None


def _open(cache: Any, rows: int, attention: Attention, context: BlockContext) -> CacheBlock:
    match cache:
        case CacheList():
            return ListBlock([_open(member, rows, attention, context) for member in cache.caches])
        case ArraysCache():
            return RecurrentBlock(cache, rows, context)
        case RotatingKVCache():
            return RowRingBlock(cache, context) if attention.mode == "row" else RingBlock(cache)
        case KVCache() if attention.mode == "row":
            return RowKVBlock(cache, context)
        case KVCache() if attention.mode == "tile":
            return TileKVBlock(cache, attention.tile, context)
        case _:
            return TrimBlock(cache)


class OpenBlock:
    """All caches of a sequence during one verify forward of `rows` rows; ends with one `keep`."""

    def __init__(self, caches: Sequence[Any], rows: int, attention: Attention) -> None:
        if reason := why_not_rewindable(caches):
            raise ValueError(reason)
        self.rows = rows
        self.context = BlockContext()
        self._blocks = [_open(cache, rows, attention, self.context) for cache in caches]

    @property
    def views(self) -> list[Any]:
        """What the model's forward takes as its caches."""
        return [block.view for block in self._blocks]

    def keep(self, rows: int) -> None:
        """Rewinds every cache to the first `rows` rows; 0 undoes the block, also after a failed forward.

        Raises ValueError outside 0 to the number of rows.
        """
        if not 0 <= rows <= self.rows:
            raise ValueError(f"keeping {rows} rows; legal is 0 to {self.rows}")
        for block in self._blocks:
            block.keep(rows)


def clone_caches(caches: Sequence[Any]) -> list[Any]:
    """Independent copies; buffers are shared until one side writes."""
    return [_clone(cache) for cache in caches]


def _clone(cache: Any) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*(_clone(member) for member in cache.caches))
    twin = copy.copy(cache)
    twin.state = tree_map(lambda leaf: leaf[:] if isinstance(leaf, mx.array) else leaf, cache.state)
    return twin
