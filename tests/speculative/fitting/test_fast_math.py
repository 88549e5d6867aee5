"""Softmax, SwiGLU and cross-entropy against MLX's own, values and gradients."""

import mlx.core as mx
import pytest

from speculative.fitting import fast_math


def close(a: mx.array, b: mx.array) -> bool:
    return bool(mx.allclose(a, b, rtol=1e-4, atol=1e-6).item())


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_softmax_and_its_gradient(scale: float) -> None:
    """Softmax agrees with MLX's, and so does the gradient through it."""
    x, w = (mx.random.normal((3, 17), key=mx.random.key(i)) * scale for i in (0, 1))
    assert close(fast_math.softmax(x), mx.softmax(x, axis=-1))
    ours = mx.grad(lambda a: (fast_math.softmax(a) * w).sum())(x)
    assert close(ours, mx.grad(lambda a: (mx.softmax(a, axis=-1) * w).sum())(x))


def test_swiglu_and_its_gradients() -> None:
    """swiglu agrees with silu(gate) * x in value and in both gradients."""
    gate, x = (mx.random.normal((4, 9), key=mx.random.key(i)) * 3 for i in (0, 1))

    def reference(g: mx.array, y: mx.array) -> mx.array:
        return (g * mx.sigmoid(g) * y).sum()

    ours = mx.grad(lambda g, y: fast_math.swiglu(g, y).sum(), argnums=(0, 1))(gate, x)
    theirs = mx.grad(reference, argnums=(0, 1))(gate, x)
    assert close(fast_math.swiglu(gate, x).sum(), reference(gate, x))
    assert all(close(a, b) for a, b in zip(ours, theirs, strict=True))


def test_cross_entropy_and_its_gradient() -> None:
    """Cross-entropy against a distribution agrees with its definition, and so does its gradient."""
    x = mx.random.normal((5, 11), key=mx.random.key(0)) * 4
    teacher = mx.softmax(mx.random.normal((5, 11), key=mx.random.key(1)), axis=-1)

    def reference(a: mx.array) -> mx.array:
        return -(teacher * (a - mx.logsumexp(a, axis=-1, keepdims=True))).sum(axis=-1)

    assert close(fast_math.cross_entropy(x, teacher), reference(x))
    ours = mx.grad(lambda a: fast_math.cross_entropy(a, teacher).mean())(x)
    assert close(ours, mx.grad(lambda a: reference(a).mean())(x))
