"""Exponentials by powers: the right values, at the ends as well."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import activations

from engine.cpu import exponential
from engine.cpu.exponential import exp, swiglu


@settings(deadline=None)
@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=50))
def test_an_exponential_is_right_to_its_base(values: list[float]) -> None:
    """The relative error stays within what a float32 base and a float32 result allow."""
    found = np.array(exp(mx.array(values, dtype=mx.float32)), dtype=np.float64)
    wanted = np.exp(np.array(values, dtype=np.float32).astype(np.float64))
    allowed = 4e-8 * np.abs(values) + 3e-7
    assert (np.abs(found / wanted - 1) <= allowed).all()


def test_the_ends_of_the_range() -> None:
    """No term for what vanishes, infinity for what overflows, 1 at 0."""
    found = exp(mx.array([-float("inf"), -200.0, 0.0, 200.0])).tolist()
    assert found == [0.0, 0.0, 1.0, float("inf")]


def test_swiglu_is_mlx_lms() -> None:
    """Over the range where it bends, and where the exponential overflows."""
    gate = mx.concatenate([mx.linspace(-30, 30, 601), mx.array([-1e4, -200.0, 200.0, 1e4])])
    x = mx.linspace(-2, 3, gate.size)
    assert mx.allclose(swiglu(gate, x), activations.swiglu(gate, x), rtol=2e-6, atol=1e-7).item()


def test_half_precision_is_mlx_lms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exponential costs as much, but powers of a half are less exact."""
    x = mx.ones((3,), dtype=mx.bfloat16)
    monkeypatch.setattr(exponential, "mlx_lm_swiglu", lambda gate, x: "mlx-lm's")
    assert swiglu(x, x) == "mlx-lm's"
