"""Copies in bytes: how they are rounded, and when MLX's products read them."""

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.cpu.narrow import narrow, packed

# In a process of its own: the kernels must come before MLX.
PRODUCTS = """
import gc, json, sys
from pathlib import Path
from engine import blas, row_gemm
row_gemm._COMPILE_TIMEOUT_S = 180.0  # a busy machine is no reason to fail
blas.preload(Path(sys.argv[1]), 2)
import mlx.core as mx
from engine.cpu.narrow import narrow
mx.set_default_device(mx.cpu)
x, weights, other = (mx.random.normal(shape, key=mx.random.key(7)) for shape in ((9, 96), (40, 96), (40, 96)))
half, vector = weights.astype(mx.float16), weights[0]
def product(rows, by=None):
    return x[:rows] @ (weights if by is None else by).T
compiled = mx.compile(product)
before = product(3), product(9), product(3, other)
mx.eval(before)
found = {"copies": narrow([weights, half, vector])}
near = product(3)
found |= {
    "is_rounded": not mx.array_equal(near, before[0]).item(),
    "is_near": mx.abs(near - before[0]).max().item() < 0.2,
    "is_rounded_when_compiled": mx.array_equal(compiled(3), near).item(),
    "keeps_many_rows": mx.array_equal(product(9), before[1]).item(),
    "keeps_other_weights": mx.array_equal(product(3, other), before[2]).item(),
    "keeps_some_of_its_rows": mx.array_equal(product(3, weights[:8]), before[0][:, :8]).item(),
    "copies_when_full": narrow([mx.random.normal((8, 8)) for _ in range(300)]),
}
# The array's memory lives on, the name it was registered under does not.
alias = weights[:]
mx.eval(alias)
del weights
gc.collect()
found["ends_with_the_array"] = mx.array_equal(product(3, alias), before[0]).item()
print(json.dumps(found))
"""


def unpacked(rows: NDArray[np.int32], depth: int) -> NDArray[np.int8]:
    """The whole numbers [N, depth], picked out one by one as the layout is described."""
    whole = np.empty((len(rows), depth), np.int8)
    for k in range(depth):
        group, place = divmod(k, 32)
        byte, lane = divmod(place, 8)
        whole[:, k] = (rows[:, group * 8 + lane] >> (8 * byte)).astype(np.int8)
    return whole


@given(
    columns=st.integers(1, 12), depth=st.integers(1, 80), spread=st.integers(-20, 20), seed=st.integers(0, 99)
)
def test_weights_are_rounded_to_the_nearest_step(columns: int, depth: int, spread: int, seed: int) -> None:
    """A row's steps follow from its largest weight; what lies beyond its end is zero."""
    matrix = np.random.default_rng(seed).standard_normal((columns, depth), np.float32) * np.float32(
        2.0**spread
    )
    rows, scales = packed(matrix)
    assert rows.shape == (columns, -(-depth // 32) * 8)
    assert np.allclose(scales * 127, abs(matrix).max(axis=1))
    again = unpacked(rows, depth) * scales[:, None]
    assert np.all(abs(again - matrix) <= scales[:, None] * 0.5001)
    assert not unpacked(rows, rows.shape[1] * 4)[:, depth:].any()


def test_a_row_of_zeros_stays_one() -> None:
    """No scale divides by nothing."""
    rows, scales = packed(np.zeros((2, 5), np.float32))
    assert not rows.any()
    assert not scales.any()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernels are for MLX's Linux CPU backend")
def test_products_of_a_few_rows_read_the_copy(tmp_path: Path) -> None:
    """Of that matrix alone, all of it, and while it lives; what there is no room for stays exact."""
    run = subprocess.run(
        [sys.executable, "-c", PRODUCTS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found.pop("copies") == 1
    assert 200 < found.pop("copies_when_full") < 300
    assert [name for name, holds in found.items() if not holds] == []


def test_nothing_is_copied_without_the_kernels() -> None:
    """As on a Mac, or where no C compiler is."""
    assert narrow([mx.ones((4, 4))]) == 0
