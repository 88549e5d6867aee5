"""Recurrent caches (GatedDeltaNet) during one verify forward: a tape of the rows, replayed on a rewind.

Knows mlx-lm's ArraysCache and the arguments of its gated delta update, nothing about models or rounds.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from speculative.hooks import BlockContext, Kernel


class RecurrentBlock:
    """An ArraysCache holding [0] convolution rows and [1] the recurrent state, left untouched until `keep`.

    Keeping fewer rows than were verified runs the recurrence once more over those rows only, from the state
    before the block: the inputs of the layer's projections are not needed again.
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
        self._convolution: mx.array | None = None
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

    def record_convolution(self, rows: mx.array) -> None:
        """Keeps the convolution's input [B, kernel - 1 + L, C]."""
        self._convolution = rows

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
            self._entries = [self._convolution_after(rows), self._state_after(rows)]
        self.base.cache = self._entries

    def _convolution_after(self, rows: int) -> mx.array:
        if self._convolution is None:
            raise ValueError("no exact rewind: the layer's convolution was not recorded")
        kept = self._convolution.shape[1] - self._rows
        return mx.contiguous(self._convolution[:, rows : rows + kept])

    def _state_after(self, rows: int) -> mx.array:
        if self._update is None:
            raise ValueError("no exact rewind: the layer's recurrence is not a gated delta update")
        update, (*inputs, a_log, dt_bias, state, mask), kwargs = self._update
        # Sliced, not masked: a masked update runs in another kernel.
        sliced = [x[:, :rows] for x in inputs]
        return update(*sliced, a_log, dt_bias, state, mask, **kwargs)[1]
