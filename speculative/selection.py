"""Kernel selections: ways to make one-row decode and K-row verify use the same kernels on a loaded model.

Owns what each selection changes and how it is undone. Which one is exact is `speculative.probe`'s business.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from mlx import nn
from mlx.utils import tree_map
from msgspec import Struct

from speculative.rollback import Attention, AttentionMode
from speculative.target import Target
from speculative.tiling import tiled

SelectionName = Literal["default", "narrow", "row_invariant"]


class Selection(Struct, frozen=True, kw_only=True):
    """One way to evaluate a model.

    `attention` is how a verify forward attends (see `rollback.Attention`); `tile` pads the input of linear
    layers, and the queries of attention "tile", to that many rows (0: as they come, padding nothing).
    """

    name: SelectionName
    attention: AttentionMode = "block"
    tile: int = 0

    @property
    def max_rows(self) -> int:
        """Rows a block may have under this selection."""
        return self.tile if self.attention == "tile" and self.tile else sys.maxsize

    def describe(self) -> str:
        """One phrase for logs and fingerprints, for example `row_invariant (tile 4)`."""
        parts = [f"tile {self.tile}"] if self.tile else []
        parts += ["attention in tiles"] if self.attention == "tile" else []
        return f"{self.name} ({', '.join(parts)})" if parts else self.name


DEFAULT = Selection(name="default")
NARROW = Selection(name="narrow", attention="row")


def why_unavailable(selection: Selection) -> str | None:
    """The reason why this build cannot apply the selection, or None."""
    if selection.name == "narrow":
        return "this MLX build has no switch for narrow matrix kernels"
    return None


def candidates(block_size: int, attends_in_tiles: bool = False) -> tuple[Selection, ...]:
    """The selections worth trying for blocks of `block_size` rows, the cheapest for plain decode first.

    What pads no rows comes first: it suffices where the matrix kernels are row-invariant already, as
    quantised ones are, and padding would make a plain step as dear as a block. Attention in tiles, if the
    target `attends_in_tiles` and no fused attention kernel is given up for it, costs a verify forward less
    than row-wise attention. Rows are padded to a multiple of 4, at which BLAS micro-kernels split evenly
    where they may not at K.
    """
    even = -(-block_size // 4) * 4
    modes: tuple[AttentionMode, ...] = ("tile", "row") if attends_in_tiles else ("row",)
    return (
        DEFAULT,
        NARROW,
        *(Selection(name="row_invariant", attention=mode) for mode in modes),
        *(Selection(name="row_invariant", attention=mode, tile=even) for mode in modes),
        *((Selection(name="row_invariant", attention="row", tile=block_size),) if block_size != even else ()),
    )


class AppliedSelection:
    """A selection in force on a target; `undo` restores the model as it was."""

    def __init__(self, target: Target, selection: Selection) -> None:
        """Raises ValueError when this build cannot apply the selection or another one is in force."""
        if reason := why_unavailable(selection):
            raise ValueError(f"selection {selection.name}: {reason}")
        if target.selected:
            raise ValueError("another selection is in force on this model; undo it first")
        self.selection = selection
        self._target = target
        self._layers = target.model.leaf_modules()
        target.selected = True
        target.attention = Attention(selection.attention, selection.tile)
        if selection.tile:
            self._replace(tree_map(lambda m: tiled(m, selection.tile), self._layers, is_leaf=_is_module))

    def undo(self) -> None:
        """Puts the model's own layers and block attention back; doing it twice changes nothing."""
        if self._target.selected and self._layers:
            self._replace(self._layers)
        self._layers = {}
        self._target.attention = Attention()
        self._target.selected = False

    def _replace(self, layers: dict) -> None:
        self._target.model.update_modules(layers)


def _is_module(value: object) -> bool:
    return isinstance(value, nn.Module)


@contextmanager
def selected(target: Target, selection: Selection) -> Generator[AppliedSelection]:
    """The selection is in force inside this block."""
    applied = AppliedSelection(target, selection)
    try:
        yield applied
    finally:
        applied.undo()
