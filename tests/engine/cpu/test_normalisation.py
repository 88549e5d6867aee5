"""Compiled norms: the bytes of MLX's own for few rows, MLX's own for many."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from engine.cpu.normalisation import CompiledRMSNorm, install_compiled_norms
from tests.speculative import tiny

SIZE = 48


def norm_of(eps: float = 1e-5) -> nn.RMSNorm:
    norm = nn.RMSNorm(SIZE, eps=eps)
    norm.weight = mx.random.uniform(0.5, 1.5, (SIZE,), key=mx.random.key(1))
    return norm


@pytest.mark.parametrize("eps", [1e-5, 1e-6])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 4), (1, 8), (1, 9), (3, 40)])
def test_bytes_are_those_of_the_module(eps: float, shape: tuple[int, ...]) -> None:
    """Whatever the rows and their scale, alone and in a block."""
    norm = norm_of(eps)
    x = 30 * mx.random.normal((*shape, SIZE), key=mx.random.key(2))
    x[0, 0] *= 1e-4
    assert tiny.same_bytes(CompiledRMSNorm(norm)(x), norm(x))


def test_half_precision_is_the_modules() -> None:
    """MLX sums the squares of half-precision rows in float32."""
    norm: Any = norm_of()
    norm.set_dtype(mx.bfloat16)
    x = mx.random.normal((1, 2, SIZE)).astype(mx.bfloat16)
    compiled = CompiledRMSNorm(norm)
    compiled._normed = pytest.fail  # pyright: ignore[reportAttributeAccessIssue]
    assert tiny.same_bytes(compiled(x), norm(x))


def test_norms_are_found_once_and_read_as_before() -> None:
    """Every norm of the model is compiled, its weight still where others look for it."""
    model: Any = tiny.llama_model()
    weight = model.model.norm.weight
    for _ in range(2):
        install_compiled_norms(model)
    norms = [module for module in model.modules() if isinstance(module, CompiledRMSNorm)]
    assert len(norms) == 2 * len(model.layers) + 1
    assert {type(norm.inner) for norm in norms} == {nn.RMSNorm}
    assert model.model.norm.weight is weight
