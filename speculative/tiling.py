"""Linear layers that always multiply the same number of rows, so that decode and verify share kernels.

Owns the padding and which module types are row-wise. Knows no model and no cache; no padded row ever leaves
the module it was added in.
"""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map
from mlx_lm.models.glm4_moe_lite import MoEGate
from mlx_lm.models.mla import MultiLinear, QuantizedMultiLinear

from speculative.stand_in import StandIn

LINEAR = (nn.Linear, nn.QuantizedLinear)
EMBEDDING = (nn.Embedding, nn.QuantizedEmbedding)
PER_HEAD = (MultiLinear, QuantizedMultiLinear)


def padded(x: mx.array, tile: int) -> mx.array:
    """[..., rows, D] with rows appended up to `tile`; unchanged when there are as many or more.

    What the further rows hold is nobody's business. A single one is repeated, which costs less than zeros.
    """
    *outer, rows, width = x.shape
    if rows >= tile:
        return x
    if rows == 1:
        return mx.broadcast_to(x, (*outer, tile, width))
    return mx.pad(x, [(0, 0)] * len(outer) + [(0, tile - rows), (0, 0)])


class _Tiled(StandIn):
    """A row-wise module evaluated in one tile of `tile` rows when it is given at most that many.

    More rows than a tile are a prompt or a batch, which decode and verify never compare: they run as they
    are.
    """

    def __init__(self, inner: nn.Module, tile: int) -> None:
        super().__init__(inner)
        self.tile = tile


class TiledLinear(_Tiled):
    """Rows [..., D] to [..., D'], for linear layers and routers."""

    def __call__(self, x: mx.array) -> Any:
        rows = x.size // x.shape[-1]
        if rows >= self.tile:
            return self.inner(x)
        y = self.inner(padded(x.reshape(rows, -1), self.tile))
        # A router returns (expert ids, scores).
        return tree_map(lambda out: out[:rows].reshape(*x.shape[:-1], -1), y)


class TiledEmbedding(_Tiled):
    """An embedding whose use as output head is tiled; looking up rows is row-wise already."""

    def __call__(self, ids: mx.array) -> mx.array:
        inner: Any = self.inner
        return inner(ids)

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits [..., V] of hiddens [..., H]."""
        inner: Any = self.inner
        rows = x.size // x.shape[-1]
        if rows >= self.tile:
            return inner.as_linear(x)
        y = inner.as_linear(padded(x.reshape(rows, -1), self.tile))
        return y[:rows].reshape(*x.shape[:-1], -1)


class TiledPerHead(_Tiled):
    """One matrix per head: rows [B, heads, L, D] to [B, heads, L, D']."""

    def __call__(self, x: mx.array, transpose: bool = True) -> mx.array:
        rows = x.shape[-2]
        return self.inner(padded(x, self.tile), transpose)[..., :rows, :]


def tiled(module: nn.Module, tile: int) -> nn.Module:
    """The tiled form of a row-wise module, or the module itself when it is of another kind."""
    if isinstance(module, EMBEDDING):
        return TiledEmbedding(module, tile)
    if isinstance(module, PER_HEAD):
        return TiledPerHead(module, tile)
    if isinstance(module, (*LINEAR, MoEGate)):
        return TiledLinear(module, tile)
    return module
