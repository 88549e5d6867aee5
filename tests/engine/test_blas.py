"""Which BLAS serves MLX, in processes of their own: it can be chosen only before MLX is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.blas import Blas

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX brings a fast BLAS of its own")

# A product as large as a layer's of the embedded model, once in four rows and once row by row.
PRELOAD = """
import json, sys
from pathlib import Path
from engine import blas, row_gemm
row_gemm._COMPILE_TIMEOUT_S = 180.0  # a busy machine is no reason to fail
first = blas.preload(Path(sys.argv[1]), 2)
import mlx.core as mx
import numpy as np
mx.set_default_device(mx.cpu)
x, weights = (mx.random.normal(shape, key=mx.random.key(7)) for shape in ((4, 1536), (576, 1536)))
block = x @ weights.T
wanted = np.array(x, np.float64) @ np.array(weights, np.float64).T
found = {
    "first": first.describe(),
    "second": blas.preload(Path(sys.argv[1]), 2).describe(),
    "row_kernels": first.row_kernels,
    "same_bytes": all(mx.array_equal(block[i : i + 1], x[i : i + 1] @ weights.T).item() for i in range(4)),
    "error": float(abs(np.array(block) - wanted).max()),
}
sys.stdout.write(json.dumps(found))
"""


def preloaded(cache: Path, path: str | None = None) -> dict[str, Any]:
    """What a fresh process finds where compilers are looked for in `path` (None: as ever)."""
    run = subprocess.run(
        [sys.executable, "-c", PRELOAD, str(cache)],
        env=dict(os.environ) if path is None else os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_row_kernels_serve_mlx(tmp_path: Path) -> None:
    """Rows have the bytes they have alone, and a preload that comes too late tells what is in force."""
    found = preloaded(tmp_path)
    assert "with row kernels (2 threads)" in found["first"]
    assert found["second"] == found["first"]
    assert found["row_kernels"]
    assert found["same_bytes"]
    assert found["error"] < 1e-3


def test_an_openblas_serves_alone_where_nothing_compiles(tmp_path: Path) -> None:
    """Without a compiler the products are right all the same."""
    found = preloaded(tmp_path, path=str(tmp_path))
    assert found["first"].startswith("scipy-openblas32")
    assert "row kernels" not in found["first"]
    assert found["second"] == found["first"]
    assert not found["row_kernels"]
    assert found["error"] < 1e-3


def test_a_blas_is_described_in_one_phrase() -> None:
    """Logs and fingerprints tell the row kernels apart."""
    alone = Blas(source="system", version="0.3.29", threads=2)
    assert alone.describe() == "system 0.3.29 (2 threads)"
    with_kernels = Blas(source="system", version="0.3.29", threads=2, row_kernels=True)
    assert with_kernels.describe() == "system 0.3.29 with row kernels (2 threads)"
    assert Blas(source="none", version="", threads=0).describe() == "none (0 threads)"
