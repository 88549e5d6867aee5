"""Attention in tiles of one shape, so that decode and verify multiply the same matrices in the same kernels.

Keys and values are read as a whole number of pages of the cache's own buffer, and a mask hides what a row may
not see. Where the matrix kernels are not row-invariant, queries are padded to a fixed number of rows as well.
A row's bytes then depend neither on how many rows it comes with nor on its place among them. Knows mlx-lm's
KVCache and its buffers, nothing about models or rounds.
"""

from itertools import groupby
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from speculative.hooks import BlockContext, Kernel
from speculative.kv_block import WrittenBlock
from speculative.tiling import padded

# Keys per page. A multiple of every BLAS micro-kernel's width, so that no row falls into a kernel's tail.
PAGE = 64


class TileMasks:
    """The masks of one forward, shared by all layers; `window` is how many keys a row sees, None for all."""

    def __init__(self, start: int, window: int | None) -> None:
        self._start = start
        self._window = window
        self._made: dict[tuple[int, int, int], mx.array] = {}

    def visible(self, first: int, rows: int, keys: int) -> mx.array:
        """Bool [rows, keys]: what row `first` of the block and those after it see."""
        mask = self._made.get((first, rows, keys))
        if mask is None:
            start = self._start + first
            positions, columns = mx.arange(start, start + rows)[:, None], mx.arange(keys)[None]
            mask = columns <= positions
            if self._window is not None:
                mask = mask & (columns > positions - self._window)
            self._made[first, rows, keys] = mask
        return mask


class TileKVBlock(WrittenBlock):
    """A KVCache attended to in tiles of `tile` rows (0: as many as come), by a block or by a single step."""

    def __init__(self, base: KVCache, tile: int, context: BlockContext) -> None:
        super().__init__(base, context)
        self._tile = tile

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> TileMasks:
        """The masks of a block of `n` rows."""
        return TileMasks(self._start, window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends [1, heads, L, D] rows, with room for the pages they are read in."""
        self._make_room(_pages_up(self._start + keys.shape[2]), keys, values)
        return super().update_and_fetch(keys, values)

    def _make_room(self, wanted: int, keys: mx.array, values: mx.array) -> None:
        """Grows the buffers to whole steps where pages would reach beyond them."""
        base: Any = self.base
        held = 0 if base.keys is None else base.keys.shape[2]
        if held >= wanted:
            return
        size = -(-wanted // base.step) * base.step

        def grown(buffer: mx.array | None, rows: mx.array) -> mx.array:
            shape = (*rows.shape[:2], size - held, rows.shape[3])
            room = mx.zeros(shape, dtype=rows.dtype)
            return room if buffer is None else mx.concatenate([buffer, room], axis=2)

        base.keys, base.values = grown(base.keys, keys), grown(base.values, values)

    def attend(self, kernel: Kernel, call: dict[str, Any]) -> mx.array:
        """Attention of the block's queries [1, heads, L, D] over what this cache holds.

        Raises ValueError for attention sinks and for masks of the model's own, which tiles do not know.
        """
        masks = call["mask"]
        if call.get("sinks") is not None or not isinstance(masks, TileMasks):
            raise ValueError("attention with sinks or a mask of the model's own is not evaluated in tiles")
        queries = call["queries"] * call["scale"]

        def tile_of(row: int) -> tuple[int, int]:
            return _pages_up(self._start + row + 1), row // self._tile if self._tile else 0

        outputs: list[mx.array] = []
        for (keys, _), rows in groupby(range(self._rows), key=tile_of):
            first, *_ = members = list(rows)
            part = queries[:, :, first : first + len(members)]
            height = max(self._tile, len(members))
            outputs.append(self._tiled(part, height, keys, masks.visible(first, height, keys)))
        return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=2)

    def _tiled(self, queries: mx.array, height: int, length: int, visible: mx.array) -> mx.array:
        """Scaled queries [1, heads, rows, D], padded to `height` rows, over the first `length` keys."""
        base: Any = self.base
        keys, values = base.keys[:, :, None, :length], base.values[:, :, None, :length]
        _, heads, rows, size = queries.shape
        # One product per query head: folding heads that share keys into one would leave kernel tails.
        queries = padded(queries, height).reshape(1, keys.shape[1], -1, height, size)
        scores = mx.where(visible, queries @ keys.swapaxes(-1, -2), mx.finfo(queries.dtype).min)
        out = mx.softmax(scores, axis=-1, precise=True) @ values
        return out.reshape(1, heads, height, -1)[:, :, :rows]


def _pages_up(length: int) -> int:
    return -(-length // PAGE) * PAGE
