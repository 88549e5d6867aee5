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


def _by_rows(*arrays: mx.array) -> Iterator[tuple[np.ndarray, ...]]:
    """Views [rows, last axis] of equally shaped arrays, piece by piece."""
    flat = [np.asarray(a).reshape(-1, a.shape[-1]) for a in arrays]
    step = max(_PIECE // flat[0].shape[-1], 1)
    for start in range(0, len(flat[0]), step):
        yield tuple(a[start : start + step] for a in flat)


def _empty(like: mx.array) -> tuple[np.ndarray, np.ndarray]:
    """A float32 array of that shape, and the same memory as [rows, last axis]."""
    out = np.empty(like.shape, dtype=np.float32)
    return out, out.reshape(-1, like.shape[-1])


def _runs_on_cpu() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu


@mx.custom_function
def _softmax(x: mx.array) -> mx.array:
    out, rows = _empty(x)
    done = 0
    for (piece,) in _by_rows(x):
        e = rows[done : done + len(piece)]
        np.exp(np.subtract(piece, piece.max(axis=-1, keepdims=True), out=e), out=e)
        e /= e.sum(axis=-1, keepdims=True)
        done += len(piece)
    return mx.array(out)


@_softmax.vjp
def _softmax_vjp(_primal: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    out, rows = _empty(output)
    done = 0
    for y, back in _by_rows(output, cotangent):
        g = np.multiply(y, back, out=rows[done : done + len(y)])
        g -= y * g.sum(axis=-1, keepdims=True)
        done += len(y)
    return mx.array(out)


@mx.custom_function
def _swiglu(gate: mx.array, x: mx.array) -> mx.array:
    out, rows = _empty(gate)
    done = 0
    for g, y in _by_rows(gate, x):
        e = _one_plus_exp_minus(g, rows[done : done + len(g)])
        np.divide(g, e, out=e)
        e *= y
        done += len(g)
    return mx.array(out)


@_swiglu.vjp
def _swiglu_vjp(
    primals: tuple[mx.array, mx.array], cotangent: mx.array, _output: mx.array
) -> tuple[mx.array, mx.array]:
    gate, x = primals
    (gate_out, gate_rows), (x_out, x_rows) = _empty(gate), _empty(x)
    done = 0
    for g, y, back in _by_rows(gate, x, cotangent):
        sigmoid = _one_plus_exp_minus(g, gate_rows[done : done + len(g)])
        np.reciprocal(sigmoid, out=sigmoid)
        silu = np.multiply(g, sigmoid, out=x_rows[done : done + len(g)])
        # The derivative of silu is sigmoid + silu * (1 - sigmoid).
        sigmoid += silu * (1 - sigmoid)
        sigmoid *= y
        sigmoid *= back
        silu *= back
        done += len(g)
    return mx.array(gate_out), mx.array(x_out)


def _one_plus_exp_minus(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    # The clip keeps the sum finite; beyond it a sigmoid is 0 or 1 in float32 anyway.
    np.exp(np.clip(np.negative(x, out=out), -87.0, 87.0, out=out), out=out)
    out += 1
    return out


@mx.custom_function
def _cross_entropy_and_softmax(logits: mx.array, teacher: mx.array) -> tuple[mx.array, mx.array]:
    out, rows = _empty(logits)
    loss = np.empty(rows.shape[0], dtype=np.float32)
    done = 0
    for x, wanted in _by_rows(logits, teacher):
        here = slice(done, done + len(x))
        best = x.max(axis=-1, keepdims=True)
        e = np.exp(np.subtract(x, best, out=rows[here]), out=rows[here])
        total = e.sum(axis=-1, keepdims=True)
        loss[here] = (np.log(total) + best)[:, 0] - np.einsum("rc,rc->r", wanted, x)
        e /= total
        done += len(x)
    return mx.array(loss.reshape(logits.shape[:-1])), mx.array(out)


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
