"""Splitting an MTP head out of a published checkpoint into a drafter folder of its own.

Owns which tensors belong to a head and the folder it ends up in. Loads no model and binds no target.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from msgspec import Struct

from speculative import qwen_head, qwen_layouts

GLM_TARGET_TYPE = "glm4_moe_lite"
GLM_HEAD_TYPE = "glm4_moe_lite_mtp"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
# The family's measured optimum: one draft per round.
_GLM_BLOCK_SIZE = 2
# Copies of the target's own, which a drafter shares.
_GLM_COPIES = ("embed_tokens.", "shared_head.head.")
_GLM_OWN_PARTS = ("enorm.", "hnorm.", "eh_proj.", "shared_head_norm.")


class SplitReport(Struct, frozen=True, kw_only=True):
    """What was written: the drafter's folder and `model_type`, its tensors and their size in bytes."""

    folder: Path
    model_type: str
    tensors: int
    size_bytes: int


def split_head(checkpoint: Path, out: Path) -> SplitReport:
    """Writes the MTP head of a Qwen or GLM-4.7-Flash checkpoint directory into the new folder `out`.

    Zero-centred norms of a Qwen head get their 1 added and its experts are joined, so that nothing about the
    file needs guessing; other values stay as stored. Raises ValueError when the checkpoint holds no head of a
    known family, when it is no checkpoint, or when `out` already holds a model.
    """
    if not (checkpoint / CONFIG_FILE).exists():
        raise ValueError(f"{checkpoint} is no checkpoint directory: it has no {CONFIG_FILE}")
    if (out / CONFIG_FILE).exists():
        raise ValueError(f"{out} already holds a model; name a new folder")
    config = json.loads((checkpoint / CONFIG_FILE).read_text())
    model_type = config.get("model_type")
    if model_type in qwen_head.TARGET_TYPES:
        tensors, head_config = _qwen_parts(checkpoint, config)
    elif model_type == GLM_TARGET_TYPE:
        tensors, head_config = _glm_parts(checkpoint, config)
    else:
        families = ", ".join([*qwen_head.TARGET_TYPES, GLM_TARGET_TYPE])
        raise ValueError(f"model_type {model_type!r} has no head that can be split; legal are {families}")
    return _write(out, tensors, head_config)


def _qwen_parts(checkpoint: Path, config: dict[str, Any]) -> tuple[dict[str, mx.array], dict[str, Any]]:
    qwen_head.head_config(config)
    source = qwen_layouts.find_head(checkpoint, config)
    if source.zero_centred is None:
        raise ValueError(
            f"{checkpoint} does not tell whether the norms of its head ({source.layout}) are zero-centred; "
            "split it from the original checkpoint"
        )
    tensors = qwen_head.head_tensors(source.tensors)
    text = config.get("text_config", config)
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    head_config = {
        "model_type": qwen_head.MODEL_TYPE,
        "block_size": qwen_head.DEFAULT_BLOCK_SIZE,
        "tie_word_embeddings": tied,
        "text_config": text,
    }
    return qwen_head.shift_norms(tensors) if source.zero_centred else tensors, head_config


def _glm_parts(checkpoint: Path, config: dict[str, Any]) -> tuple[dict[str, mx.array], dict[str, Any]]:
    prefix = f"model.layers.{config['num_hidden_layers']}."
    files = qwen_layouts.tensor_files(checkpoint)
    names = [name for name in files if name.startswith(prefix)]
    if f"{prefix}eh_proj.weight" not in names:
        raise ValueError(f"{checkpoint} holds no MTP head: it has no {prefix}eh_proj.weight")
    loaded: dict[Path, Any] = {path: mx.load(str(path)) for path in {files[name] for name in names}}
    short = {name: name.removeprefix(prefix) for name in names}
    tensors = {
        _glm_name(short[name]): loaded[files[name]][name]
        for name in names
        if not short[name].startswith(_GLM_COPIES)
    }
    head_config = {"model_type": GLM_HEAD_TYPE, "block_size": _GLM_BLOCK_SIZE, "text_config": config}
    return tensors, head_config


def _glm_name(name: str) -> str:
    """A nextn tensor as split heads call it: everything but the fusing parts is the decoder layer's."""
    name = name.replace("shared_head.norm.", "shared_head_norm.")
    return f"model.{name}" if name.startswith(_GLM_OWN_PARTS) else f"model.mtp_block.{name}"


def _write(out: Path, tensors: dict[str, mx.array], config: dict[str, Any]) -> SplitReport:
    out.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(out / WEIGHTS_FILE), tensors, {"format": "mlx"})
    # Last, because a folder counts as a drafter once it has one.
    (out / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    size = sum(array.nbytes for array in tensors.values())
    return SplitReport(folder=out, model_type=config["model_type"], tensors=len(tensors), size_bytes=size)
