"""What the overhead run refuses to compare."""

import pytest

from bench.errors import BenchError
from bench.overhead_run import require_same_blas

FAST = frozenset({"/cache/openblas.so"})


def test_systems_under_different_blas_libraries_are_not_compared() -> None:
    """The sentence names each system's library, also its absence."""
    require_same_blas({"inprocess": FAST, "mlx_lm_server": FAST, "mtp_serve": FAST})
    with pytest.raises(BenchError, match=r"mtp-serve: none") as caught:
        require_same_blas({"inprocess": FAST, "mlx_lm_server": FAST, "mtp_serve": frozenset()})
    assert "mlx_lm.server: ['/cache/openblas.so']" in str(caught.value)
