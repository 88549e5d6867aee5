"""The MTP head of Qwen 3.5, 3.6, 3.8 and Qwen3-Next: geometry, network and the names of its tensors.

Owns what the head computes and how published tensors become its parameters. Knows no folder and no request;
embedding table and output head belong to the target.
"""

import copy
import re
from typing import Any

import mlx.core as mx
import msgspec
from mlx import nn
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from msgspec import Struct

MODEL_TYPE = "qwen3_5_mtp"
TARGET_TYPES = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next")
# Published heads are trained to predict one token further; a second chained draft still pays.
DEFAULT_BLOCK_SIZE = 3

_EXPERT = re.compile(r"(.*\.mlp)\.experts\.(\d+)\.((?:gate|up|down)_proj\.\w+)")


class QwenHeadConfig(Struct, frozen=True, kw_only=True):
    """`config.json` of a split head; `text_config` is the target's own text configuration."""

    text_config: dict[str, Any]
    block_size: int = DEFAULT_BLOCK_SIZE

    def __post_init__(self) -> None:
        """Raises ValueError naming the field, its value and the legal range."""
        if self.block_size < 2:
            raise ValueError(f"block_size is {self.block_size}; it must be at least 2")
        for name in ("hidden_size", "vocab_size"):
            if not isinstance(self.text_config.get(name), int):
                raise ValueError(f"{name} is {self.text_config.get(name)!r}; it must be an integer")
        layers = self.text_config.get("mtp_num_hidden_layers", 1)
        if layers != 1:
            raise ValueError(f"mtp_num_hidden_layers is {layers}; a head of 1 layer is what can be run")
        if self.text_config.get("mtp_use_dedicated_embeddings"):
            raise ValueError("mtp_use_dedicated_embeddings is true; the head must share the target's")

    @property
    def hidden_size(self) -> int:
        """Width H of the head's hiddens."""
        return self.text_config["hidden_size"]

    @property
    def vocab_size(self) -> int:
        """Tokens the head's target has."""
        return self.text_config["vocab_size"]


def head_config(config: dict[str, Any]) -> QwenHeadConfig:
    """The head's configuration from a `config.json`, of a split head or of a whole target.

    Raises ValueError (msgspec.ValidationError included) naming what is wrong.
    """
    text = config.get("text_config", config)
    block_size = config.get("block_size", DEFAULT_BLOCK_SIZE)
    return msgspec.convert({"text_config": text, "block_size": block_size}, QwenHeadConfig)


def _decoder_layer(text_config: dict[str, Any]) -> nn.Module:
    """The family's decoder layer with full attention: an interval of 1 makes every layer such a one."""
    # mlx-lm rewrites the nested rope parameters of what it is given.
    fields = copy.deepcopy(text_config) | {"full_attention_interval": 1}
    if fields.get("model_type") == "qwen3_next":
        sparse = {"mlp_only_layers": [], "decoder_sparse_step": 1}
        return qwen3_next.Qwen3NextDecoderLayer(qwen3_next.ModelArgs.from_dict(fields | sparse), 0)
    return qwen3_5.DecoderLayer(qwen3_5.TextModelArgs.from_dict(fields), 0)


class QwenHead(nn.Module):
    """fc over [norm(embedding), norm(hidden)], one full-attention decoder layer with own KV, final norm."""

    def __init__(self, config: QwenHeadConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.text_config.get("rms_norm_eps", 1e-6)
        self.pre_fc_norm_embedding = nn.RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(size, eps=eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = [_decoder_layer(config.text_config)]
        self.norm = nn.RMSNorm(size, eps=eps)

    def fuse(self, features: mx.array) -> mx.array:
        """The target's hidden [1, L, H], read as it is."""
        return features

    def __call__(self, embeddings: mx.array, hiddens: mx.array, cache: list[KVCache]) -> mx.array:
        """One pass over pairs, embeddings and hiddens [B, L, H]; see `HeadNetwork`.

        Returns [B, L, H] after the final norm: input of the output head and next chained hidden alike.
        """
        (own,) = cache
        parts = [self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hiddens)]
        x = self.fc(mx.concatenate(parts, axis=-1))
        mask: Any = create_attention_mask(x, own)
        return self.norm(self.layers[0](x, mask, own))

    def make_cache(self) -> list[KVCache]:
        """One empty cache; slot i holds the pair (hidden i, token i + 1)."""
        return [KVCache()]


def head_tensors(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Published tensors, without prefix, as the parameters of a `QwenHead`; values stay as they are.

    Splits fused experts (gate_up_proj [E, 2I, H], gate rows first), stacks single ones, and drops copies of
    the target's embedding and output head.
    """
    kept = {n: array for n, array in tensors.items() if not n.startswith(("embed_tokens.", "lm_head."))}
    return _stacked(_split_fused(kept))


def _split_fused(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    out: dict[str, mx.array] = {}
    for name, array in tensors.items():
        mlp, _, fused = name.rpartition(".experts.")
        if mlp and fused == "gate_up_proj":
            gate, up = mx.split(array, 2, axis=-2)
            out |= {f"{mlp}.switch_mlp.gate_proj.weight": gate, f"{mlp}.switch_mlp.up_proj.weight": up}
        elif mlp and fused == "down_proj":
            out[f"{mlp}.switch_mlp.down_proj.weight"] = array
        else:
            out[name] = array
    return out


def _stacked(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    out: dict[str, mx.array] = {}
    experts: dict[str, dict[int, mx.array]] = {}
    for name, array in tensors.items():
        if match := _EXPERT.fullmatch(name):
            mlp, index, part = match.groups()
            experts.setdefault(f"{mlp}.switch_mlp.{part}", {})[int(index)] = array
        else:
            out[name] = array
    return out | {name: mx.stack([rows[i] for i in sorted(rows)]) for name, rows in experts.items()}


def shift_norms(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Adds the 1 that zero-centred norm weights leave out, on every norm of the head."""
    return {name: array + 1.0 if _is_norm(name, array) else array for name, array in tensors.items()}


def _is_norm(name: str, array: mx.array) -> bool:
    return array.ndim == 1 and "norm" in name.removesuffix(".weight").split(".")[-1]
