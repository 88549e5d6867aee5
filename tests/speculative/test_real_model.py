"""The probe on the embedded model under an optimised BLAS, in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from speculative.probe import ProbeResult

PROBE = """
import sys
from pathlib import Path
from engine import blas
if blas.preload(Path(sys.argv[1]), 1).source in ("vendored", "none"):
    sys.exit(3)
import msgspec
from engine import embedded
from speculative.probe import ProbeSettings, run_probe
from speculative.target import Target
settings = ProbeSettings(block_size=4, context_length=64, draws=2, repeats=1)
result = run_probe(Target(embedded.load("float32")[0]), settings)
sys.stdout.write(msgspec.json.encode(result).decode())
"""


@pytest.mark.slow
def test_an_exact_selection_is_found_at_block_size_four(tmp_path: Path) -> None:
    """Optimised matrix kernels differ by row count; some selection makes block and chain byte-equal."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path)], capture_output=True, text=True, check=False, timeout=280
    )
    if run.returncode == 3:
        pytest.skip("no optimised BLAS on this machine")
    assert run.returncode == 0, run.stderr
    result = msgspec.json.decode(run.stdout, type=ProbeResult)
    assert result.exact
    for attempt in result.attempts[:-1]:
        assert re.search(r"differs from the single-token chain in \d+ of 196608|no switch", attempt.reason)
    assert result.attempts[-1].selection == result.selection
