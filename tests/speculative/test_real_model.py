"""The probe on the embedded model under an optimised BLAS, in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from speculative.probe import ProbeResult
from speculative.selection import DEFAULT

PROBE = """
import sys
from pathlib import Path
from engine import blas, row_gemm
row_gemm._COMPILE_TIMEOUT_S = 180.0  # a busy machine is no reason to fail
if sys.argv[2] == "openblas":
    row_gemm._COMPILERS = ()
if blas.preload(Path(sys.argv[1]), 1).source in ("vendored", "none"):
    sys.exit(3)
import msgspec
from engine import embedded
from speculative.probe import ProbeSettings, run_probe
from speculative.target import Target
settings = ProbeSettings(block_size=4, context_length=64, draws=2, repeats=1, other_sizes=tuple(range(2, 9)))
result = run_probe(Target(embedded.load("float32")[0]), settings)
sys.stdout.write(msgspec.json.encode(result).decode())
"""


def probe(cache: Path, kernels: Literal["openblas", "own"]) -> ProbeResult:
    """The probe's result at block size 4, with or without row kernels of our own."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE, str(cache), kernels],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    if run.returncode == 3:
        pytest.skip("no optimised BLAS on this machine")
    assert run.returncode == 0, run.stderr
    return msgspec.json.decode(run.stdout, type=ProbeResult)


@pytest.mark.slow
def test_padding_makes_an_openblas_exact_at_block_size_four(tmp_path: Path) -> None:
    """Its kernels differ by row count; some selection that pads makes block and chain byte-equal."""
    result = probe(tmp_path, "openblas")
    assert result.exact
    for attempt in result.attempts[:-1]:
        assert re.search(r"differs from the single-token chain in \d+ of 196608|no switch", attempt.reason)
    assert result.attempts[-1].selection == result.selection
    assert result.selection.tile == 4


@pytest.mark.slow
def test_row_kernels_are_exact_as_they_are(tmp_path: Path) -> None:
    """With them nothing is padded, for any size of block that they serve."""
    result = probe(tmp_path, "own")
    assert result.exact
    assert result.selection == DEFAULT
    assert result.exact_sizes == tuple(range(2, 9))
