"""Rotation tables: the bytes of MLX's own rotary encoding, wherever they stand in for it."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from engine.cpu.rotary import RotationTable, TabledRoPE, install_rotation_tables
from tests.speculative import tiny

DIMS = 16


def tabled(rope: nn.RoPE) -> TabledRoPE:
    return TabledRoPE(rope, RotationTable(rope))


def vectors(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal((*shape, DIMS), key=mx.random.key(7)).astype(dtype)


@pytest.mark.parametrize("traditional", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize(("offset", "rows"), [(0, 1), (0, 40), (37, 1), (4095, 3), (9000, 2)])
def test_bytes_are_those_of_the_module(traditional: bool, scale: float, offset: int, rows: int) -> None:
    """At the start, within, across and far beyond a table's first length, for one head and several."""
    rope = nn.RoPE(DIMS, traditional=traditional, base=10000, scale=scale)
    table = tabled(rope)
    for x in (vectors(1, 3, rows), vectors(2, 1, rows)):
        assert tiny.same_bytes(table(x, offset=offset), rope(x, offset=offset))


def test_a_growing_table_keeps_what_it_said() -> None:
    """Positions read before the table grew and after it have the same bytes."""
    table = tabled(nn.RoPE(DIMS))
    x = vectors(1, 1, 4)
    before = table(x, offset=10)
    table(x, offset=20000)
    assert tiny.same_bytes(table(x, offset=10), before)


@pytest.mark.parametrize(
    ("x", "offset", "dims"),
    [
        (vectors(2, 1, 3), mx.array([4, 9]), DIMS),
        (vectors(1, 1, 3, dtype=mx.bfloat16), 4, DIMS),
        (vectors(1, 1, 3), 4, DIMS // 2),
    ],
    ids=["an offset per row", "half precision", "a part of the dimensions"],
)
def test_what_a_table_does_not_cover_is_the_modules(x: mx.array, offset: Any, dims: int) -> None:
    """The result is the module's own, and no table is made."""
    rope = nn.RoPE(dims)
    table = RotationTable(rope)
    table.at = pytest.fail  # pyright: ignore[reportAttributeAccessIssue]
    assert tiny.same_bytes(TabledRoPE(rope, table)(x, offset=offset), rope(x, offset=offset))


def test_layers_of_one_geometry_share_a_table() -> None:
    """Every layer's rotation is tabled, from the same table, and a second installation changes nothing."""
    model = tiny.llama_model()
    for _ in range(2):
        install_rotation_tables(model)
    ropes = [layer.self_attn.rope for layer in model.layers]
    assert all(type(rope) is TabledRoPE and type(rope.inner) is nn.RoPE for rope in ropes)
    assert len({id(rope._table) for rope in ropes}) == 1
