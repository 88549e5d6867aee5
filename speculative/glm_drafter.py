"""The MTP head of GLM-4.7-Flash (its nextn layer): network, file layout, and the drafter over it.

Owns what the head computes and how its tensors are named. Knows neither caches of requests nor the round
loop; embedding table and output head belong to the target, whose copies in the file are dropped.
"""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import msgspec
from mlx import nn
from mlx.utils import tree_map_with_path
from mlx_lm.models import glm4_moe_lite
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.models.glm4_moe_lite import Glm4MoeLiteDecoderLayer, ModelArgs
from msgspec import Struct

from speculative.chained_head import ChainedHeadDrafter, HeadTraits
from speculative.head_weights import load_module_weights, quantise_head, read_folder

MODEL_TYPE = "glm4_moe_lite_mtp"
_CONFIG_FILE = "config.json"
# Outside the decoder layer; what else a head has belongs to `mtp_block`.
_OWN_PARTS = ("enorm.", "hnorm.", "eh_proj.", "shared_head_norm.")
_COPIES = ("embed_tokens.", "lm_head.", "shared_head.head.")
_SCORE_BIAS = "e_score_correction_bias"


class GlmHeadConfig(Struct, frozen=True, kw_only=True):
    """`config.json` of a split head: `text_config` is the target's own configuration."""

    text_config: dict[str, Any]
    block_size: int = 2

    def __post_init__(self) -> None:
        """Raises ValueError naming the field, its value and the legal range."""
        if self.block_size < 2:
            raise ValueError(f"block_size is {self.block_size}; it must be at least 2")

    @property
    def args(self) -> ModelArgs:
        """The target's mlx-lm arguments."""
        return ModelArgs.from_dict(self.text_config)


class GlmHead(nn.Module):
    """eh_proj over [enorm(embedding), hnorm(hidden)], one decoder layer with latent KV, shared_head norm."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        size, eps = args.hidden_size, args.rms_norm_eps
        self.enorm = nn.RMSNorm(size, eps=eps)
        self.hnorm = nn.RMSNorm(size, eps=eps)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.mtp_block = Glm4MoeLiteDecoderLayer(args, args.num_hidden_layers)
        self.shared_head_norm = nn.RMSNorm(size, eps=eps)

    def fuse(self, features: mx.array) -> mx.array:
        """The hidden after the target's final norm [B, L, H], read as it is."""
        return features

    def __call__(self, embeddings: mx.array, hiddens: mx.array, cache: list[KVCache]) -> mx.array:
        """One pass over pairs, embeddings and hiddens [B, L, H]; see `HeadNetwork`.

        Returns [B, L, H] after the shared_head norm: input of the output head and next chained hidden alike.
        """
        (own,) = cache
        if own.offset == 0:
            # The head was trained with no embedding at absolute position 0.
            embeddings = mx.concatenate([mx.zeros_like(embeddings[:, :1]), embeddings[:, 1:]], axis=1)
        x = self.eh_proj(mx.concatenate([self.enorm(embeddings), self.hnorm(hiddens)], axis=-1))
        # Latent attention adds its rope scores to the mask and so needs an array.
        mask: Any = create_attention_mask(x, own, return_array=True)
        return self.shared_head_norm(self.mtp_block(x, mask, own))

    def make_cache(self) -> list[KVCache]:
        """One empty cache, of latents and rope keys."""
        return [KVCache()]


def head_tensors(tensors: dict[str, mx.array], args: ModelArgs) -> dict[str, mx.array]:
    """The tensors of a `GlmHead`, from a split head or from `model.layers.{num_hidden_layers}` as published.

    Drops the copies of the target's embedding and output head; joins experts and splits `kv_b_proj` where
    that was not done yet.
    """
    nextn = f"model.layers.{args.num_hidden_layers}."
    named = ((_head_name(name, nextn), array) for name, array in tensors.items())
    kept = {name: array for name, array in named if not name.startswith(_COPIES)}
    own = {name: array for name, array in kept.items() if name.startswith(_OWN_PARTS)}
    return own | _converted(kept, args)


def _head_name(name: str, nextn: str) -> str:
    short = name.removeprefix(nextn).removeprefix("model.").removeprefix("mtp_block.")
    return short.replace("shared_head.norm.", "shared_head_norm.")


def _converted(tensors: dict[str, mx.array], args: ModelArgs) -> dict[str, mx.array]:
    """The decoder layer's tensors in mlx-lm's layout."""
    block = {f"model.layers.0.{n}": a for n, a in tensors.items() if not n.startswith(_OWN_PARTS)}
    single = ModelArgs.from_dict(vars(args) | {"num_hidden_layers": 1})
    # The family's own conversion; of the model it reads the arguments only.
    model = cast("glm4_moe_lite.Model", SimpleNamespace(args=single))
    done: Iterable[tuple[str, mx.array]] = glm4_moe_lite.Model.sanitize(model, block).items()
    return {name.replace("model.layers.0.", "mtp_block.", 1): array for name, array in done}


def _cast(head: GlmHead, dtype: mx.Dtype) -> None:
    """Computes in `dtype`, except for the router's bias: rounding it would pick other experts."""

    def convert(path: str, array: mx.array) -> mx.array:
        fixed = path.endswith(_SCORE_BIAS) or not mx.issubdtype(array.dtype, mx.floating)
        return array if fixed else array.astype(dtype)

    head.update(tree_map_with_path(convert, head.parameters()))


def glm_drafter(head: GlmHead, config: GlmHeadConfig) -> ChainedHeadDrafter:
    """A drafter over a head that is already in memory."""
    args = config.args
    traits = HeadTraits(
        name="the GLM MTP head",
        hidden_size=args.hidden_size,
        vocab_size=args.vocab_size,
        block_size=config.block_size,
    )
    return ChainedHeadDrafter(head, traits)


def load_glm_drafter(folder: Path, dtype: mx.Dtype, bits: int | None = None) -> ChainedHeadDrafter:
    """Loads a split head computing in `dtype`, the target's; quantises its layers to `bits` when given.

    Raises ValueError when configuration and tensors disagree.
    """
    config = msgspec.json.decode((folder / _CONFIG_FILE).read_bytes(), type=GlmHeadConfig)
    head = GlmHead(config.args)
    load_module_weights(head, head_tensors(read_folder(folder), config.args))
    _cast(head, dtype)
    if bits is not None:
        quantise_head(head, bits)
    return glm_drafter(head, config)
