"""Lets the row kernels read matrices from copies in bytes: near the weights, at a quarter of the traffic.

Owns the rounding, the layout that `row_gemm.c` reads, and how long a copy is in force. Only for weights whose
products need not be exact, as a drafter's: a target's would change what it says.
"""

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

# As in row_gemm.c.
_LANES = 8
_BYTES = 4
_LARGEST = 127


def narrow(weights: Iterable[mx.array]) -> int:
    """Makes copies of the float32 matrices [N, K] among `weights`, read instead of them while they live.

    Products of a few rows by a matrix's transpose read the copy, others the matrix. Returns how many copies
    are in force: 0 where the row kernels are not.
    """
    # Every library that was loaded globally, as the kernels are.
    kernels = ctypes.CDLL(None)
    if not hasattr(kernels, "row_gemm_narrow"):
        return 0
    matrices = [weight for weight in weights if weight.ndim == 2 and weight.dtype == mx.float32]
    mx.eval(matrices)
    return sum(_register(kernels, matrix) for matrix in matrices)


def _register(kernels: Any, weight: mx.array) -> bool:
    # A view, whose address is the one that MLX hands to the BLAS.
    matrix = np.asarray(weight)
    rows, scales = packed(matrix)
    place = ctypes.c_void_p(matrix.ctypes.data)
    copy = (ctypes.c_void_p(rows.ctypes.data), ctypes.c_void_p(scales.ctypes.data))
    if not kernels.row_gemm_narrow(place, *matrix.shape, *copy):
        return False
    # Keeps the copy, but not the matrix, which ends it.
    end = weakref.finalize(weight, _forget, kernels, place, rows, scales)
    end.atexit = False
    return True


def _forget(kernels: Any, place: ctypes.c_void_p, *copy: NDArray[Any]) -> None:
    kernels.row_gemm_forget(place)


def packed(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """A matrix [N, K] as whole numbers of a byte, packed as int32 [N, ceil(K / 32) * 8], and scales [N].

    The numbers are rounded to the nearest of 255 steps between a row's largest magnitude and its opposite.
    Their order is described at `narrow_copy` in `row_gemm.c`.
    """
    scales = np.abs(matrix).max(axis=1, initial=0) / np.float32(_LARGEST)
    whole = np.rint(matrix / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
    padding = -matrix.shape[1] % (_BYTES * _LANES)
    groups = np.pad(whole, ((0, 0), (0, padding))).reshape(len(matrix), -1, _BYTES, _LANES)
    rows = np.ascontiguousarray(groups.swapaxes(2, 3)).view("<i4")
    return rows.reshape(len(matrix), -1), scales
