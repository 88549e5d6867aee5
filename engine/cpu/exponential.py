"""Exponentials that a CPU can afford, and SwiGLU made of them.

MLX evaluates `exp`, `sigmoid` and `tanh` on a CPU element by element at about 25 ns each; `power` takes 9 ns.
"""

from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models.activations import swiglu as mlx_lm_swiglu

_BASE = mx.array(2.718281828459045)


def exp(x: mx.array) -> mx.array:
    """e to the power of a float32 array, to about |x| * 3e-8 relative: the error of the rounded base."""
    return mx.power(_BASE, x)


@partial(mx.compile, shapeless=True)
def _swiglu(gate: mx.array, x: mx.array) -> mx.array:
    return gate * x / (1 + exp(-gate))


def swiglu(gate: mx.array, x: mx.array) -> Any:
    """silu(gate) * x of arrays of one shape, as `mlx_lm.models.activations.swiglu`."""
    both_float32 = gate.dtype == x.dtype == mx.float32
    return _swiglu(gate, x) if both_float32 else mlx_lm_swiglu(gate, x)
