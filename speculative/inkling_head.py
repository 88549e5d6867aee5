"""Inkling's MTP depths as networks, and where a checkpoint keeps them.

Each depth is a decoder layer with weights and caches of its own. Knows neither histories nor rounds.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from speculative.head_weights import load_module_weights, quantise_head, read_tensors
from speculative.inkling_model import DecoderLayer, ModelArgs
from speculative.inkling_weights import depth_tensors

TARGET_TYPES = ("inkling_mm_model", "inkling_model")
# Drafting deeper than this has not paid anywhere it was measured.
DEFAULT_DEPTHS = 3


class MtpDepth(nn.Module):
    """Norms of hidden and embedding, their projection, and one decoder layer with a dense MLP."""

    def __init__(self, args: ModelArgs, depth: int) -> None:
        super().__init__()
        size, eps = args.hidden_size, args.rms_norm_eps
        self.hidden_norm = nn.RMSNorm(size, eps=eps)
        self.embed_norm = nn.RMSNorm(size, eps=eps)
        self.input_proj = nn.Linear(2 * size, size, bias=False)
        self.transformer_block = DecoderLayer(args, depth)

    def __call__(self, embeddings: mx.array, hiddens: mx.array, cache: Any) -> mx.array:
        """Embeddings as the target's first layer reads them and hiddens, [1, L, H] each, to raw [1, L, H]."""
        x = mx.concatenate([self.hidden_norm(hiddens), self.embed_norm(embeddings)], axis=-1)
        return self.transformer_block(self.input_proj(x), cache)


class InklingHead(nn.Module):
    """The first depths of a checkpoint's MTP stack."""

    def __init__(self, args: ModelArgs, local_depths: list[int], depths: int, chains_normed: bool) -> None:
        super().__init__()
        kinds = ["hybrid_sliding" if i in local_depths else "hybrid" for i in range(depths)]
        layer_args = replace(args, layer_types=kinds, mlp_layer_types=["dense"] * depths)
        self.depths = [MtpDepth(layer_args, depth) for depth in range(depths)]
        if chains_normed:
            self.chain_norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def chained(self, hiddens: mx.array) -> mx.array:
        """What the next depth reads of a depth's raw output [1, L, H]."""
        return self.chain_norm(hiddens) if "chain_norm" in self else hiddens


def _text(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config", config)


def _head_files(folder: Path) -> list[Path]:
    side = folder / "mtp.safetensors"
    return [side] if side.exists() else sorted(folder.glob("*.safetensors"))


def has_inkling_head(folder: Path, config: dict[str, Any]) -> bool:
    """Whether the folder is an Inkling checkpoint with the tensors of MTP depths."""
    if config.get("model_type") not in TARGET_TYPES:
        return False
    return any(name.startswith("model.mtp.") for path in _head_files(folder) for name in read_tensors(path))


def load_inkling_head(
    folder: Path, config: dict[str, Any], dtype: mx.Dtype, bits: int | None = None
) -> tuple[InklingHead, ModelArgs]:
    """The first depths in a checkpoint folder, computed in `dtype`, quantised to `bits` when given.

    Raises ValueError when the folder holds no depth, or tensors do not fit the configuration.
    """
    args = ModelArgs.from_dict(_text(config))
    tensors: dict[str, mx.array] = {}
    for path in _head_files(folder):
        tensors |= depth_tensors(read_tensors(path))
    found = {int(name.split(".")[1]) for name in tensors if name.startswith("depths.")}
    count = min(len(found), DEFAULT_DEPTHS)
    if not count:
        raise ValueError(f"{folder} holds no MTP depth of Inkling: no tensor starts with model.mtp.layers.")
    settings = config.get("mtp_config") or _text(config).get("mtp_config") or {}
    chains_normed = bool(settings.get("chain_hidden_post_norm")) and "chain_norm.weight" in tensors
    wanted = tuple(f"depths.{i}." for i in range(count)) + (("chain_norm.",) if chains_normed else ())
    head = InklingHead(args, settings.get("local_layer_ids", []), count, chains_normed)
    load_module_weights(head, {name: value for name, value in tensors.items() if name.startswith(wanted)})
    head.set_dtype(dtype)
    if bits is not None:
        quantise_head(head, bits)
    return head, args
