"""The text part of Inkling as an mlx-lm style model, which mlx-lm itself does not have.

Owns the network: relative position bias instead of rotary, short convolutions on keys, values and both
residual branches. Knows how its caches look during a verify forward; tensor names are `inkling_weights`'.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import BaseModelArgs, scaled_dot_product_attention
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache
from mlx_lm.models.switch_layers import SwitchGLU

from speculative.inkling_weights import text_tensors
from speculative.kv_block import RowKVBlock
from speculative.recurrent_block import RecurrentBlock

# Additive mask value of a key that must not be seen.
HIDDEN_KEY = -1e30


@dataclass
class ModelArgs(BaseModelArgs):
    """Text configuration; sizes in elements, windows in tokens.

    `layer_types` or `local_layer_ids` say which layers attend within `sliding_window_size`; without both
    every sixth layer is global. `log_scaling_n_floor` (tokens) turns on query scaling of global layers.
    """

    model_type: str = "inkling_model"
    hidden_size: int = 6144
    num_hidden_layers: int = 66
    vocab_size: int = 201024
    unpadded_vocab_size: int | None = None
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    use_embed_norm: bool = True
    logits_mup_width_multiplier: float = 1.0
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    head_dim: int = 128
    swa_num_attention_heads: int = 64
    swa_num_key_value_heads: int = 16
    swa_head_dim: int = 128
    sliding_window_size: int = 512
    local_layer_ids: list[int] | None = None
    layer_types: list[str] | None = None
    d_rel: int = 16
    rel_extent: int = 1024
    log_scaling_n_floor: int | None = None
    log_scaling_alpha: float = 0.1
    sconv_kernel_size: int = 4
    dense_mlp_idx: int = 0
    mlp_layer_types: list[str] | None = None
    intermediate_size: int = 24576
    dense_intermediate_size: int | None = None
    moe_intermediate_size: int | None = None
    n_routed_experts: int = 256
    num_experts_per_tok: int = 6
    n_shared_experts: int = 2
    route_scale: float = 8.0

    @classmethod
    def from_dict(cls, params: dict[str, Any]) -> "ModelArgs":
        """From a `config.json`, whose text part lies in `text_config` in multimodal checkpoints."""
        return super().from_dict(params.get("text_config", params))

    def is_local(self, layer: int) -> bool:
        """Whether a layer attends within the window only."""
        if self.layer_types is not None:
            return self.layer_types[layer] == "hybrid_sliding"
        if self.local_layer_ids is not None:
            return layer in self.local_layer_ids
        return (layer + 1) % 6 != 0

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has one MLP instead of experts."""
        if self.mlp_layer_types is not None:
            return self.mlp_layer_types[layer] == "dense"
        return layer < self.dense_mlp_idx


class ShortConvolution(nn.Module):
    """Depthwise causal convolution over the last rows plus the row itself, in float32."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel_size, groups=channels, bias=False)
        self._history = kernel_size - 1

    def __call__(self, x: mx.array, cache: Any, slot: int) -> mx.array:
        """[B, L, C] to [B, L, C]; `slot` is this convolution's place in the layer's ArraysCache."""
        rows = x.astype(mx.float32)
        mask = None if cache is None else cache.make_mask(x.shape[1])
        kept = rows if mask is None else mx.where(mask[..., None], rows, 0)
        state = None if cache is None else cache[slot]
        if state is None:
            state = mx.zeros((x.shape[0], self._history, x.shape[2]), dtype=mx.float32)
        window = mx.concatenate([state, kept], axis=1)
        if cache is not None:
            self._store(window, x.shape[1], cache, slot)
        out: mx.array = self.conv(window.astype(self.conv.weight.dtype))
        return (out.astype(mx.float32) + rows).astype(x.dtype)

    def _store(self, window: mx.array, length: int, cache: Any, slot: int) -> None:
        if isinstance(cache, RecurrentBlock):
            cache.record_window(slot, window)
        if cache.lengths is None:
            cache[slot] = mx.contiguous(window[:, length:])
            return
        # Rows of a right-padded batch end at different places.
        ends = mx.clip(cache.lengths, 0, length)
        positions = (ends[:, None] + mx.arange(self._history))[..., None]
        cache[slot] = mx.take_along_axis(window, positions, axis=1)


class Attention(nn.Module):
    """Grouped-query attention whose only position signal is a learned bias by distance."""

    def __init__(self, args: ModelArgs, layer: int) -> None:
        super().__init__()
        local = args.is_local(layer)
        self.window = args.sliding_window_size if local else 0
        self.extent = args.sliding_window_size if local else args.rel_extent
        self.num_heads = args.swa_num_attention_heads if local else args.num_attention_heads
        self.num_kv_heads = args.swa_num_key_value_heads if local else args.num_key_value_heads
        self.head_dim = args.swa_head_dim if local else args.head_dim
        self.d_rel = args.d_rel
        self.log_floor = None if local else args.log_scaling_n_floor
        self.log_alpha = args.log_scaling_alpha
        width, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(args.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(args.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(args.hidden_size, keys, bias=False)
        self.r_proj = nn.Linear(args.hidden_size, self.num_heads * args.d_rel, bias=False)
        self.o_proj = nn.Linear(width, args.hidden_size, bias=False)
        self.k_sconv = ShortConvolution(keys, args.sconv_kernel_size)
        self.v_sconv = ShortConvolution(keys, args.sconv_kernel_size)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=args.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=args.rms_norm_eps)
        self.rel_proj = mx.zeros((args.d_rel, self.extent))

    def __call__(self, x: mx.array, cache: Any) -> mx.array:
        """[B, L, H] to [B, L, H]; `cache` is a CacheList of keys-values and convolution rows."""
        kv, rows = (None, None) if cache is None else (cache[0], cache[1])
        queries, relative = self.q_proj(x), self.r_proj(x)
        keys = self.k_sconv(self.k_proj(x), rows, 0)
        values = self.v_sconv(self.v_proj(x), rows, 1)
        queries = self.q_norm(self._heads(queries, self.num_heads))
        relative = self._heads(relative, self.num_heads)
        keys = self.k_norm(self._heads(keys, self.num_kv_heads))
        values = self._heads(values, self.num_kv_heads)
        offset = 0 if kv is None else kv.offset
        padding = getattr(kv, "left_padding", None)
        if kv is not None:
            keys, values = kv.update_and_fetch(keys, values)
        if isinstance(kv, RowKVBlock):
            outputs = [
                self._attend(queries[:, :, i : i + 1], relative[:, :, i : i + 1], k, v, offset + i, None)
                for i, (k, v, _) in enumerate(kv.row_views(None))
            ]
            output = mx.concatenate(outputs, axis=2)
        else:
            output = self._attend(queries, relative, keys, values, offset, padding)
        return self.o_proj(output.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))

    def _heads(self, x: mx.array, heads: int) -> mx.array:
        return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    def _attend(
        self,
        queries: mx.array,
        relative: mx.array,
        keys: mx.array,
        values: mx.array,
        offset: Any,
        padding: Any,
    ) -> mx.array:
        """Queries [B, heads, L, D] over keys [B, kv heads, S, D]; the queries' own are the last L keys."""
        bias = self._bias(relative, keys.shape[2], padding)
        if self.log_floor is not None:
            tau = self._tau(self.log_floor, offset, queries.shape[2]).astype(queries.dtype)
            queries, bias = queries * tau, mx.where(bias > HIDDEN_KEY / 10, bias * tau, bias)
        return scaled_dot_product_attention(
            queries, keys, values, cache=None, scale=1.0 / self.head_dim, mask=bias
        )

    def _bias(self, relative: mx.array, num_keys: int, padding: mx.array | None) -> mx.array:
        """Additive mask [B, heads, L, S]: the learned bias by distance; what must not be seen is hidden."""
        length = relative.shape[2]
        by_distance = relative @ self.rel_proj.astype(relative.dtype)
        distance = (mx.arange(length) + num_keys - length)[:, None] - mx.arange(num_keys)[None]
        index = mx.broadcast_to(
            mx.clip(distance, 0, self.extent - 1), (*relative.shape[:2], length, num_keys)
        )
        bias = mx.take_along_axis(by_distance, index, axis=-1)
        bias = mx.where(distance < self.extent, bias, 0)
        visible = distance >= 0
        if self.window:
            visible = visible & (distance < self.window)
        if padding is not None:
            visible = visible & (mx.arange(num_keys) >= padding[:, None, None, None])
        return mx.where(visible, bias, mx.array(HIDDEN_KEY, bias.dtype))

    def _tau(self, floor: int, offset: Any, length: int) -> mx.array:
        """Query scale by position: 1 up to the floor, growing with the logarithm beyond it."""
        positions = mx.arange(1, length + 1) + mx.expand_dims(mx.array(offset), -1)
        ratio = mx.maximum(positions.astype(mx.float32) / floor, 1.0)
        tau = 1.0 + self.log_alpha * mx.log(ratio)
        return tau.reshape(-1, 1, length, 1)


class DenseMLP(nn.Module):
    """SwiGLU with a learned output scale."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        inner = args.dense_intermediate_size or args.intermediate_size
        self.gate_proj = nn.Linear(args.hidden_size, inner, bias=False)
        self.up_proj = nn.Linear(args.hidden_size, inner, bias=False)
        self.down_proj = nn.Linear(inner, args.hidden_size, bias=False)
        self.global_scale = mx.ones((1,))

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x))) * self.global_scale


class SparseMLP(nn.Module):
    """Routed and shared experts, weighted by one softmax over the log-sigmoids of their gates."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.num_routed, self.num_shared = args.n_routed_experts, args.n_shared_experts
        self.top_k, self.route_scale = args.num_experts_per_tok, args.route_scale
        inner = args.moe_intermediate_size or args.intermediate_size
        self.gate = nn.Linear(args.hidden_size, self.num_routed + self.num_shared, bias=False)
        self.e_score_correction_bias = mx.zeros((self.num_routed,))
        self.global_scale = mx.ones((1,))
        self.switch_mlp = SwitchGLU(args.hidden_size, inner, self.num_routed)
        self.shared_experts = SwitchGLU(args.hidden_size, inner, self.num_shared)

    def __call__(self, x: mx.array) -> mx.array:
        gates = self.gate(x).astype(mx.float32)
        routed, shared = mx.split(gates, [self.num_routed], axis=-1)
        scores = mx.sigmoid(routed) + self.e_score_correction_bias
        chosen = mx.argpartition(-scores, self.top_k - 1, axis=-1)[..., : self.top_k]
        logits = mx.concatenate([mx.take_along_axis(routed, chosen, axis=-1), shared], axis=-1)
        weights = mx.softmax(nn.log_sigmoid(logits), axis=-1) * self.route_scale * self.global_scale
        top, always = mx.split(weights.astype(x.dtype)[..., None], [self.top_k], axis=-2)
        every = mx.broadcast_to(mx.arange(self.num_shared), (*x.shape[:-1], self.num_shared))
        return (self.switch_mlp(x, chosen) * top).sum(-2) + (self.shared_experts(x, every) * always).sum(-2)


class DecoderLayer(nn.Module):
    """Attention and MLP, each followed by a short convolution before it joins the residual stream."""

    def __init__(self, args: ModelArgs, layer: int) -> None:
        super().__init__()
        size, eps = args.hidden_size, args.rms_norm_eps
        self.self_attn = Attention(args, layer)
        self.mlp = DenseMLP(args) if args.is_dense(layer) else SparseMLP(args)
        self.input_layernorm = nn.RMSNorm(size, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(size, eps=eps)
        self.attn_sconv = ShortConvolution(size, args.sconv_kernel_size)
        self.mlp_sconv = ShortConvolution(size, args.sconv_kernel_size)

    def __call__(self, x: mx.array, cache: Any) -> mx.array:
        rows = None if cache is None else cache[1]
        h = x + self.attn_sconv(self.self_attn(self.input_layernorm(x), cache), rows, 2)
        h = h + self.mlp_sconv(self.mlp(self.post_attention_layernorm(h)), rows, 3)
        if rows is not None:
            rows.advance(x.shape[1])
        return h


def make_layer_cache() -> CacheList:
    """The empty cache of one layer: keys and values, and the rows of its four convolutions."""
    return CacheList(KVCache(), ArraysCache(4))


class InnerModel(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        if args.use_embed_norm:
            self.embed_norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.layers = [DecoderLayer(args, i) for i in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def embed(self, tokens: mx.array) -> mx.array:
        """What the first layer reads: embedding rows, normed where the model does so."""
        rows = self.embed_tokens(tokens)
        return self.embed_norm(rows) if "embed_norm" in self else rows

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        h = self.embed(inputs)
        for layer, layer_cache in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            h = layer(h, layer_cache)
        return self.norm(h)


class Model(nn.Module):
    """Inkling's text model with mlx-lm's calling conventions."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.model_type = args.model_type
        self.model = InnerModel(args)
        if not args.tie_word_embeddings:
            self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        return self.hidden_to_logits(self.model(inputs, cache))

    def hidden_to_logits(self, hidden: mx.array) -> mx.array:
        """Logits [..., V] of normed hiddens [..., H], without the padding of the vocabulary."""
        hidden = hidden / self.args.logits_mup_width_multiplier
        head: Any = self.lm_head if "lm_head" in self else self.model.embed_tokens.as_linear
        return head(hidden)[..., : self.args.unpadded_vocab_size or self.args.vocab_size]

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """The tensors of a checkpoint under this model's names."""
        return text_tensors(weights)

    @property
    def layers(self) -> list[DecoderLayer]:
        """The decoder layers, in order."""
        return self.model.layers

    def make_cache(self) -> list[CacheList]:
        """Empty caches for one sequence."""
        return [make_layer_cache() for _ in self.layers]
