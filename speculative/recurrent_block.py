"""Recurrent caches during one verify forward: a tape of what the rows did, replayed on a rewind.

Knows mlx-lm's ArraysCache, convolution windows and the gated delta update, nothing about models or rounds.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from speculative.hooks import BlockContext, Kernel

# Where a GatedDeltaNet layer keeps its convolution's rows and its recurrent state.
CONVOLUTION, STATE = 0, 1


class RecurrentBlock:
    """An ArraysCache whose entries are convolution rows or a recurrent state, left untouched until `keep`.

    Keeping fewer rows than were verified cuts the convolutions' windows and runs a recurrence once more over
    those rows only, from the state before the block: no projection is computed again.
    """

    # What the layers read to tell a padded batch from a single sequence.
    lengths = None
    left_padding = None

    def __init__(self, base: ArraysCache, rows: int, context: BlockContext) -> None:
        self.base = base
        self.view = self
        self._context = context
        self._rows = rows
        self._entries: list[Any] = list(base.cache)
        self._windows: dict[int, mx.array] = {}
        self._update: tuple[Kernel, tuple[Any, ...], dict[str, Any]] | None = None

    def __getitem__(self, index: int) -> Any:
        self._context.recorder = self
        return self._entries[index]

    def __setitem__(self, index: int, value: mx.array) -> None:
        self._entries[index] = value

    def advance(self, n: int) -> None:
        """The layer is done with its n rows."""
        self._context.recorder = None

    def make_mask(self, n: int) -> mx.array | None:
        """None: a single sequence has no padding."""
        return self.base.make_mask(n)

    def record_window(self, index: int, rows: mx.array) -> None:
        """Keeps the whole input [B, kernel - 1 + L, C] of the convolution whose rows entry `index` holds."""
        self._windows[index] = rows

    def record_convolution(self, rows: mx.array) -> None:
        """Keeps the window of a GatedDeltaNet's convolution."""
        self.record_window(CONVOLUTION, rows)

    def record_update(self, update: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keeps the gated delta update with its arguments (q, k, v, a, b, A_log, dt_bias, state, mask)."""
        self._update = (update, args, kwargs)

    def keep(self, rows: int) -> None:
        """Moves the cache to the state after the first `rows` rows.

        Raises ValueError when the layer using the cache is not one whose rows could be recorded.
        """
        if rows == 0:
            return
        if rows < self._rows:
            self._entries = [self._entry_after(index, rows) for index in range(len(self._entries))]
        self.base.cache = self._entries

    def _entry_after(self, index: int, rows: int) -> mx.array:
        window = self._windows.get(index)
        if window is not None:
            kept = window.shape[1] - self._rows
            return mx.contiguous(window[:, rows : rows + kept])
        if index == STATE and self._update is not None:
            return _state_after(*self._update, rows)
        raise ValueError(f"no exact rewind: nothing was recorded for entry {index} of a recurrent cache")


def _state_after(update: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], rows: int) -> mx.array:
    *inputs, a_log, dt_bias, state, mask = args
    # Sliced, not masked: a masked update runs in another kernel.
    sliced = [x[:, :rows] for x in inputs]
    return update(*sliced, a_log, dt_bias, state, mask, **kwargs)[1]
