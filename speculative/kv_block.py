"""Attention caches during one verify forward: writing K rows, evaluating them, keeping the accepted ones.

Knows mlx-lm's KV cache classes and their buffers, nothing about models or rounds.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models import cache as mlx_cache
from mlx_lm.models.cache import KVCache, RotatingKVCache
from msgspec import Struct

from speculative.hooks import BlockContext, Kernel

RowView = tuple[mx.array, mx.array, mx.array | None]


class RowMasks(Struct, frozen=True):
    """Stands for a mask that is made per query row; arguments as a cache's `make_mask` takes them."""

    window_size: int | None
    return_array: bool


def _attend_by_row(views: Sequence[RowView], kernel: Kernel, call: dict[str, Any]) -> mx.array:
    queries = call["queries"]
    outputs = [
        kernel(**call | {"queries": queries[:, :, i : i + 1], "keys": k, "values": v, "mask": m})
        for i, (k, v, m) in enumerate(views)
    ]
    return mx.concatenate(outputs, axis=2)


class TrimBlock:
    """A cache whose own `trim` is exact; the model sees the cache itself."""

    def __init__(self, base: Any) -> None:
        self.base = base
        self.view = base
        self._start: int = base.offset

    def keep(self, rows: int) -> None:
        """Forgets every row of the block after the first `rows`."""
        self.base.trim(self.base.offset - self._start - rows)


class WrittenBlock(TrimBlock, ABC):
    """A KVCache the model writes through this block, which evaluates the attention over it."""

    def __init__(self, base: KVCache, context: BlockContext) -> None:
        super().__init__(base)
        self.view = self
        self._context = context
        self._rows = 0

    @property
    def offset(self) -> int:
        """Position of the next row, as the model's rope reads it."""
        return self.base.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends [B, heads, L, D] rows; attention over the returned arrays is this block's to evaluate."""
        self._rows = keys.shape[2]
        written: Any = self.base.update_and_fetch(keys, values)
        self._context.own(written[0], self)
        return written

    @abstractmethod
    def attend(self, kernel: Kernel, call: dict[str, Any]) -> mx.array:
        """See `hooks.BlockKeys`."""


class RowKVBlock(WrittenBlock):
    """A KVCache that is written at once and attended to row by row; also holds MLA latents."""

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> RowMasks:
        """The masks of n rows, each made when its row is evaluated."""
        return RowMasks(window_size, return_array)

    def attend(self, kernel: Kernel, call: dict[str, Any]) -> mx.array:
        """Every query row as a one-row decode evaluates it."""
        return _attend_by_row(self.row_views(call["mask"]), kernel, call)

    def row_views(self, mask: RowMasks | None) -> Sequence[RowView]:
        """Row i sees everything up to itself, under the mask a one-row decode at its position makes."""
        views: list[RowView] = []
        keys, values, _ = cast("tuple[mx.array, mx.array, int]", self.base.state)
        for end in range(self._start + 1, self._start + self._rows + 1):
            row_mask: Any = None
            if mask is not None:
                row_mask = mlx_cache.create_attention_mask(1, end - 1, mask.return_array, mask.window_size)
            views.append((keys[..., :end, :], values[..., :end, :], row_mask))
        return views


class RingBlock:
    """A rotating cache evaluated as mlx-lm evaluates several rows; the ring itself is written on `keep`.

    Writing late is what makes the rewind exact past the window: nothing was overwritten, and the accepted
    rows land in the slots a token-by-token decode would have used.
    """

    def __init__(self, base: RotatingKVCache) -> None:
        self.base = base
        self.view = self
        self._rows: tuple[mx.array, mx.array] | None = None

    @property
    def offset(self) -> int:
        """Position of the next row, as the model's rope reads it."""
        return self.base.offset

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> Any:
        """The mask over the window in temporal order followed by n new rows."""
        return self.base.make_mask(n, window_size=window_size, return_array=return_array)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The window in temporal order with [B, heads, L, D] rows appended; the cache stays untouched."""
        self._rows = (keys, values)
        old_keys, old_values = self.base.keys, self.base.values
        if old_keys is None or old_values is None:
            return keys, values
        return self._appended(old_keys, keys), self._appended(old_values, values)

    def _appended(self, ring: mx.array, rows: mx.array) -> mx.array:
        ordered = self.base._temporal_order(ring)
        return self.base._trim(ordered.shape[2] - self.base.max_size + 1, ordered, rows)

    def keep(self, rows: int) -> None:
        """Writes the first `rows` rows as single steps."""
        if self._rows is None:
            return
        keys, values = self._rows
        for i in range(rows):
            self.base.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])


class RowRingBlock:
    """A rotating cache stepped row by row, every row attending to the ring as a one-row decode finds it.

    The buffers after each step are kept until the round is decided, so a rewind picks one of them.
    """

    def __init__(self, base: RotatingKVCache, context: BlockContext) -> None:
        self.base = base
        self.view = self
        self._context = context
        self._states: list[tuple[Any, ...]] = [_ring_state(base)]
        self._views: list[tuple[mx.array, mx.array]] = []

    @property
    def offset(self) -> int:
        """Position of the next row, as the model's rope reads it."""
        return self.base.offset

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> RowMasks:
        """The masks of n rows, each made when its row is evaluated."""
        return RowMasks(window_size, return_array)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Steps through [B, heads, L, D] rows; attention over the returned arrays is evaluated per row."""
        for i in range(keys.shape[2]):
            fetched: Any = self.base.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
            # A full slice is another array object: the next step rewrites the one the cache holds.
            self._views.append((fetched[0][:], fetched[1][:]))
            self._states.append(_ring_state(self.base))
        all_keys, all_values = self._views[-1]
        self._context.own(all_keys, self)
        return all_keys, all_values

    def attend(self, kernel: Kernel, call: dict[str, Any]) -> mx.array:
        """Every query row as a one-row decode evaluates it."""
        return _attend_by_row(self.row_views(call["mask"]), kernel, call)

    def row_views(self, mask: RowMasks | None) -> Sequence[RowView]:
        """Row i sees the ring after step i, under the mask a one-row decode makes before that step."""
        masks = [None if mask is None else self._row_mask(state, mask) for state in self._states]
        return [(*view, row_mask) for view, row_mask in zip(self._views, masks, strict=False)]

    @staticmethod
    def _row_mask(state: tuple[Any, ...], mask: RowMasks) -> Any:
        before: Any = RotatingKVCache.from_state(state)
        return before.make_mask(1, window_size=mask.window_size, return_array=mask.return_array)

    def keep(self, rows: int) -> None:
        """Returns to the ring as it was after the first `rows` rows."""
        self.base.state = self._states[rows]


def _ring_state(ring: RotatingKVCache) -> tuple[Any, ...]:
    """The cache's state with array objects of its own."""
    return tuple(part[:] if isinstance(part, mx.array) else part for part in ring.state)
