"""Rotary position encoding from a table of sines and cosines that all layers share.

Without a fused kernel `mx.fast.rope` is some seventeen operations, and works out the same sines in every
layer for queries and keys. Knows MLX's own `nn.RoPE`; scaled variants keep their own arithmetic.
"""

from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
from mlx import nn

from speculative.stand_in import StandIn

# Positions a table grows by; 4,096 take 10 ms and, with 64 dimensions, 2 MiB.
_STEP = 4096


class Rotation(NamedTuple):
    """What a pair's own half and its other half are multiplied with, each float32 [L, ...halves apart]."""

    own: mx.array
    other: mx.array


class RotationTable:
    """The rotations of the positions needed so far, made by the module they stand for."""

    def __init__(self, rope: nn.RoPE) -> None:
        self._rope = rope
        self._rotation: Rotation | None = None
        self._length = 0
        self._asked = (0, 0)
        self._answer: Rotation | None = None

    def at(self, first: int, count: int) -> Rotation:
        """The rotations of `count` positions from `first` on; every layer of a forward asks for the same."""
        if self._answer is None or self._asked != (first, count):
            self._asked, self._answer = (first, count), self._rows(first, first + count)
        return self._answer

    def _rows(self, start: int, stop: int) -> Rotation:
        if self._rotation is None or self._length < stop:
            self._length = -(-stop // _STEP) * _STEP
            self._rotation = self._made(self._length)
        return Rotation(self._rotation.own[start:stop], self._rotation.other[start:stop])

    def _made(self, length: int) -> Rotation:
        """The rotation is linear: of (1, 0) it gives (cos, sin), of (0, 1) it gives (-sin, cos)."""
        halves = apart(mx.zeros((length, self._rope.dims)), self._rope.traditional)
        number = mx.arange(2) if self._rope.traditional else mx.arange(2)[:, None]
        is_first = mx.broadcast_to(number == 0, halves.shape)
        of_first, of_second = (self._turned(half) for half in (is_first, ~is_first))
        rotation = Rotation(mx.where(is_first, of_first, of_second), mx.where(is_first, of_second, of_first))
        mx.eval(rotation)
        return rotation

    def _turned(self, halves: mx.array) -> mx.array:
        vectors = halves.astype(mx.float32).reshape(1, len(halves), self._rope.dims)
        turned: Any = self._rope(vectors)
        return apart(turned[0], self._rope.traditional)


def apart(x: mx.array, traditional: bool) -> mx.array:
    """[..., D] with the halves of its pairs on an axis of their own: [..., D/2, 2] or [..., 2, D/2]."""
    return x.reshape(*x.shape[:-1], *((-1, 2) if traditional else (2, -1)))


@partial(mx.compile, shapeless=True)
def _rotated(x: mx.array, swapped: mx.array, own: mx.array, other: mx.array) -> mx.array:
    return x * own + swapped * other


class TabledRoPE(StandIn):
    """An `nn.RoPE` that looks its sines up; the result has the same bytes."""

    def __init__(self, inner: nn.RoPE, table: RotationTable) -> None:
        super().__init__(inner)
        self._table = table

    def __call__(self, x: mx.array, offset: Any = 0) -> Any:
        rope: Any = self.inner
        # A batch has an offset per row, and half precision rounds the positions as well.
        if type(offset) is not int or x.dtype != mx.float32 or x.shape[-1] != rope.dims:
            return rope(x, offset)
        return self.turned(x, self.rotation(offset, x.shape[-2]))

    def rotation(self, first: int, count: int) -> Rotation:
        """What turns `count` rows from position `first` on."""
        return self._table.at(first, count)

    def turned(self, x: mx.array, rotation: Rotation) -> mx.array:
        """Float32 [..., L, D] with every row turned to its position."""
        rope: Any = self.inner
        halves = apart(x, rope.traditional)
        swapped = halves[..., ::-1] if rope.traditional else halves[..., ::-1, :]
        return _rotated(halves, swapped, *rotation).reshape(x.shape)


def install_rotation_tables(model: nn.Module) -> None:
    """Every `nn.RoPE` of `model` looks up a table, one per geometry; doing it twice changes nothing."""
    tables: dict[tuple[Any, ...], RotationTable] = {}
    for module in model.modules():
        rope = module.get("rope")
        if type(rope) is nn.RoPE:
            geometry = (rope.dims, rope.traditional, rope.base, rope.scale)
            module.rope = TabledRoPE(rope, tables.setdefault(geometry, RotationTable(rope)))
