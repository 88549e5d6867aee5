"""Latent attention (MLA) of a K-row verify forward evaluated as K one-row decodes.

mlx-lm takes an absorbed path at one row and an expanded one at several; only the former is used here.
Knows the parts of mlx-lm's GLM-4.7-Flash attention, nothing about rounds.
"""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.glm4_moe_lite import Glm4MoeLiteAttention

from speculative.kv_block import RowKVBlock


class RowwiseLatentAttention(nn.Module):
    """Stands in for a latent attention; acts only when the cache wants its rows evaluated one by one."""

    def __init__(self, inner: Glm4MoeLiteAttention) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if not isinstance(cache, RowKVBlock):
            return self.inner(x, mask, cache)
        return self._rows(x, cache)

    def _queries(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Query parts [B, heads, L, nope] and [B, heads, L, rope], before rope."""
        inner: Any = self.inner
        if inner.q_lora_rank is None:
            q = inner.q_proj(x)
        else:
            q = inner.q_b_proj(inner.q_a_layernorm(inner.q_a_proj(x)))
        q = q.reshape(*x.shape[:2], inner.num_heads, inner.q_head_dim).transpose(0, 2, 1, 3)
        nope, rope = mx.split(q, [inner.qk_nope_head_dim], axis=-1)
        return nope, rope

    def _rows(self, x: mx.array, cache: RowKVBlock) -> mx.array:
        inner: Any = self.inner
        nope, rope = self._queries(x)
        latent, key_rope = mx.split(inner.kv_a_proj_with_mqa(x), [inner.kv_lora_rank], axis=-1)
        latent = mx.expand_dims(inner.kv_a_layernorm(latent), axis=1)
        key_rope = mx.expand_dims(key_rope, axis=1)
        rope, key_rope = inner.rope(rope, cache.offset), inner.rope(key_rope, cache.offset)
        cache.update_and_fetch(latent, key_rope)
        rows = [
            self._row(nope[:, :, i : i + 1], rope[:, :, i : i + 1], keys, key_ropes)
            for i, (keys, key_ropes, _) in enumerate(cache.row_views(None))
        ]
        output = mx.concatenate(rows, axis=2)
        return inner.o_proj(output.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))

    def _row(self, nope: mx.array, rope: mx.array, latent: mx.array, key_rope: mx.array) -> mx.array:
        """One query row over latents [B, 1, T, rank] and rope keys [B, 1, T, rope]."""
        inner: Any = self.inner
        scores = (rope * inner.scale) @ key_rope.swapaxes(-1, -2)
        output = scaled_dot_product_attention(
            inner.embed_q(nope), latent, latent, cache=None, scale=inner.scale, mask=scores
        )
        return inner.unembed_out(output)


def install_rowwise_latent(model: nn.Module) -> None:
    """Wraps every latent attention of `model`; doing it twice changes nothing."""
    for module in model.modules():
        attention = module.get("self_attn")
        if isinstance(attention, Glm4MoeLiteAttention):
            module.self_attn = RowwiseLatentAttention(attention)
