"""Softmax, SwiGLU and cross-entropy for training, with exponentials a CPU can afford.

Owns numerics alone. MLX's exponential costs 25 ns an element on CPU and NumPy's vectorised one 3 ns; a loss
over thousands of tokens per position is mostly exponentials. On a GPU MLX's own is used.
"""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np

# Elements per pass: temporaries of this size stay in a core's cache.
_PIECE = 65_536


def _by_rows(*arrays: mx.array | np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Views [rows, last axis] of arrays that share all axes but the last, piece by piece."""
    flat = [np.asarray(a).reshape(-1, a.shape[-1]) for a in arrays]
    step = max(_PIECE // flat[0].shape[-1], 1)
    for start in range(0, len(flat[0]), step):
        yield tuple(a[start : start + step] for a in flat)


def _empty(like: mx.array) -> np.ndarray:
    return np.empty(like.shape, dtype=np.float32)


def _runs_on_cpu() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu


@mx.custom_function
def _softmax(x: mx.array) -> mx.array:
    out = _empty(x)
    for piece, e in _by_rows(x, out):
        np.exp(np.subtract(piece, piece.max(axis=-1, keepdims=True), out=e), out=e)
        np.divide(e, e.sum(axis=-1, keepdims=True), out=e)
    return mx.array(out)


@_softmax.vjp
def _softmax_vjp(_primal: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    out = _empty(output)
    for y, back, g in _by_rows(output, cotangent, out):
        np.multiply(y, back, out=g)
        np.subtract(g, y * g.sum(axis=-1, keepdims=True), out=g)
    return mx.array(out)


@mx.custom_function
def _swiglu(gate: mx.array, x: mx.array) -> mx.array:
    out = _empty(gate)
    for g, y, e in _by_rows(gate, x, out):
        _one_plus_exp_minus(g, e)
        np.divide(g, e, out=e)
        np.multiply(e, y, out=e)
    return mx.array(out)


@_swiglu.vjp
def _swiglu_vjp(
    primals: tuple[mx.array, mx.array], cotangent: mx.array, _output: mx.array
) -> tuple[mx.array, mx.array]:
    gate, x = primals
    gate_out, x_out = _empty(gate), _empty(x)
    for g, y, back, sigmoid, silu in _by_rows(gate, x, cotangent, gate_out, x_out):
        np.reciprocal(_one_plus_exp_minus(g, sigmoid), out=sigmoid)
        np.multiply(g, sigmoid, out=silu)
        # The derivative of silu is sigmoid + silu * (1 - sigmoid).
        np.add(sigmoid, silu * (1 - sigmoid), out=sigmoid)
        np.multiply(sigmoid, y * back, out=sigmoid)
        np.multiply(silu, back, out=silu)
    return mx.array(gate_out), mx.array(x_out)


def _one_plus_exp_minus(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    # The clip keeps the sum finite; beyond it a sigmoid is 0 or 1 in float32 anyway.
    np.exp(np.clip(np.negative(x, out=out), -87.0, 87.0, out=out), out=out)
    out += 1
    return out


@mx.custom_function
def _cross_entropy_and_softmax(logits: mx.array, teacher: mx.array) -> tuple[mx.array, mx.array]:
    out = _empty(logits)
    losses = np.empty((*logits.shape[:-1], 1), dtype=np.float32)
    for x, wanted, e, loss in _by_rows(logits, teacher, out, losses):
        best = x.max(axis=-1, keepdims=True)
        np.exp(np.subtract(x, best, out=e), out=e)
        total = e.sum(axis=-1, keepdims=True)
        loss[:, 0] = (np.log(total) + best)[:, 0] - np.einsum("rc,rc->r", wanted, x)
        np.divide(e, total, out=e)
    return mx.array(losses[..., 0]), mx.array(out)


@_cross_entropy_and_softmax.vjp
def _cross_entropy_vjp(
    primals: tuple[mx.array, mx.array],
    cotangents: tuple[mx.array, mx.array],
    outputs: tuple[mx.array, mx.array],
) -> tuple[mx.array, mx.array]:
    _, teacher = primals
    return (outputs[1] - teacher) * cotangents[0][..., None], mx.zeros_like(teacher)


def softmax(x: mx.array) -> mx.array:
    """Softmax of a float32 array over the last axis."""
    if not _runs_on_cpu():
        return mx.softmax(x, axis=-1)
    out: Any = _softmax(x)
    return out


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) * x of float32 arrays of one shape."""
    if not _runs_on_cpu():
        return gate * mx.sigmoid(gate) * x
    out: Any = _swiglu(gate, x)
    return out


def cross_entropy(logits: mx.array, teacher: mx.array) -> mx.array:
    """-sum(teacher * log softmax(logits)) over the last axis, float32; `teacher` gets no gradient."""
    if not _runs_on_cpu():
        teacher = mx.stop_gradient(teacher)
        return mx.logsumexp(logits, axis=-1) - (teacher * logits).sum(axis=-1)
    both: Any = _cross_entropy_and_softmax(logits, teacher)
    return both[0]
