"""RMS norms whose element-wise parts are one kernel: without a fused one, a norm is a dozen small operations.

Knows MLX's own `nn.RMSNorm`; what subclasses it or computes its own norm is left alone.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
from mlx import nn

from speculative.stand_in import StandIn

# Rows of a block, at most. Every number of rows is compiled for itself, and a prompt's chunks have any.
_MOST_ROWS = 8


@cache
def _compiled(eps: float) -> Callable[[mx.array, mx.array], mx.array]:
    def normed(x: mx.array, weight: mx.array) -> mx.array:
        return x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + eps) * weight

    return mx.compile(normed)


class CompiledRMSNorm(StandIn):
    """An `nn.RMSNorm` with the same bytes, made of fewer operations where few float32 rows come."""

    def __init__(self, inner: nn.RMSNorm) -> None:
        super().__init__(inner)
        self._normed = _compiled(inner.eps)

    def __call__(self, x: mx.array) -> Any:
        norm: Any = self.inner
        if x.dtype != mx.float32 or x.size > _MOST_ROWS * x.shape[-1]:
            return norm(x)
        return self._normed(x, norm.weight)


def install_compiled_norms(model: nn.Module) -> None:
    """Every `nn.RMSNorm` of `model` becomes a compiled one; doing it twice changes nothing."""
    for module in model.modules():
        if isinstance(module, StandIn):
            continue
        for name, child in module.items():
            if type(child) is nn.RMSNorm:
                module[name] = CompiledRMSNorm(child)
