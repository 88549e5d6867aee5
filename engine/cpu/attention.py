"""Attention over float32 keys and values on a CPU: cheaper exponentials, and one mask for all layers.

Owns the arithmetic of one call. Anything unusual (other types, sinks, quantised caches, additive masks) is
mlx-lm's own to evaluate.
"""

from functools import lru_cache, partial
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from mlx_lm.models import base

from engine.cpu.exponential import exp

Mask = mx.array | Literal["causal"] | None


def scaled_dot_product_attention(
    queries: mx.array,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: Mask,
    sinks: mx.array | None = None,
) -> mx.array:
    """softmax(queries keys^T * scale) values; arguments as `mlx_lm.models.base.scaled_dot_product_attention`.

    queries [B, heads, L, D], keys and values [B, groups, N, D]; bool masks [L, N] or [B, 1, L, N]. A row's
    result does not depend on the rows beside it as long as the matrix products do not.
    """
    if sinks is not None or hasattr(cache, "bits") or not _is_plain(queries, keys, mask):
        unusual: Any = mask
        return base.scaled_dot_product_attention(queries, keys, values, cache, scale, unusual, sinks)
    batch, heads, rows, size = queries.shape
    groups, length = keys.shape[1:3]
    grouped = (queries * scale).reshape(batch, groups, heads // groups, rows, size)
    scores = grouped @ keys[:, :, None].swapaxes(-1, -2)
    visible = _causal(rows, length) if isinstance(mask, str) else mask
    if visible is not None:
        visible = visible[:, :, None] if visible.ndim == 4 else visible
        scores = mx.where(visible, scores, mx.finfo(scores.dtype).min)
    weights = _exp_of_difference(scores, mx.max(scores, axis=-1, keepdims=True))
    # There are fewer outputs to divide than weights.
    out = (weights @ values[:, :, None]) / mx.sum(weights, axis=-1, keepdims=True)
    return out.reshape(batch, heads, rows, -1)


def _is_plain(queries: mx.array, keys: Any, mask: Mask) -> bool:
    if not isinstance(keys, mx.array) or not queries.dtype == keys.dtype == mx.float32:
        return False
    if isinstance(mask, mx.array):
        return mask.dtype == mx.bool_ and (mask.ndim == 2 or (mask.ndim == 4 and mask.shape[1] == 1))
    return True


@partial(mx.compile, shapeless=True)
def _exp_of_difference(x: mx.array, largest: mx.array) -> mx.array:
    return exp(x - largest)


@lru_cache(maxsize=1)
def _causal(rows: int, length: int) -> mx.array | None:
    """Bool [rows, length]: the last row sees everything, every one before it one position less."""
    if rows == 1:
        return None
    visible: Any = np.tri(rows, length, length - rows, dtype=np.bool_)
    return mx.array(visible)
