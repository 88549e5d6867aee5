"""Random Qwen heads, and checkpoints around them written the ways they are published."""

import copy
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from speculative.qwen_head import QwenHead, QwenHeadConfig, head_config
from speculative.target import Target
from tests.speculative import tiny

NEXT_TEXT = (
    tiny.QWEN_TEXT
    | tiny.QWEN_MOE
    | {
        "model_type": "qwen3_next",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 4096,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }
)
TEXTS: dict[str, dict[str, Any]] = {
    "dense": tiny.QWEN_TEXT,
    "moe": tiny.QWEN_TEXT | tiny.QWEN_MOE,
    "next": NEXT_TEXT,
}


def config_of(kind: str = "dense") -> QwenHeadConfig:
    return head_config(copy.deepcopy(TEXTS[kind]))


def random_head(kind: str = "dense", seed: int = 3) -> QwenHead:
    head = tiny.randomise(QwenHead(config_of(kind)), seed=seed)
    assert isinstance(head, QwenHead)
    return head


def parameters(head: QwenHead) -> dict[str, mx.array]:
    return dict(tree_flatten(head.parameters()))


def target_config(kind: str = "dense") -> dict[str, Any]:
    """`config.json` of the target: nested text settings, except for Qwen3-Next."""
    text = copy.deepcopy(TEXTS[kind])
    names = {"dense": "qwen3_5", "moe": "qwen3_5_moe"}
    return text if kind == "next" else {"model_type": names[kind], "text_config": text}


def as_published(head: QwenHead) -> dict[str, mx.array]:
    """The head as original shards name and store it: norms around zero, experts fused, `mtp.` in front."""
    out: dict[str, mx.array] = {}
    for name, array in zero_centred(parameters(head)).items():
        mlp, _, part = name.partition(".switch_mlp.")
        if part == "down_proj.weight":
            out[f"{mlp}.experts.down_proj"] = array
        elif part:
            gate, up = (head.layers[0].mlp.switch_mlp[n].weight for n in ("gate_proj", "up_proj"))
            out[f"{mlp}.experts.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
        else:
            out[name] = array
    return prefixed(out, "mtp.")


def with_single_experts(head: QwenHead) -> dict[str, mx.array]:
    """The head as Qwen3-Next publishes it: one tensor per expert."""
    out: dict[str, mx.array] = {}
    for name, array in zero_centred(parameters(head)).items():
        mlp, _, part = name.partition(".switch_mlp.")
        rows = {f"{mlp}.experts.{e}.{part}": array[e] for e in range(array.shape[0])} if part else {}
        out |= rows or {name: array}
    return prefixed(out, "mtp.")


def zero_centred(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Takes 1 off every vector, all of which are norms in a Qwen head."""
    return {name: array - 1.0 if array.ndim == 1 else array for name, array in tensors.items()}


def prefixed(tensors: dict[str, mx.array], prefix: str) -> dict[str, mx.array]:
    return {prefix + name: array for name, array in tensors.items()}


def trunk(*, original: bool) -> dict[str, mx.array]:
    """A tensor of the target's own, whose layout shows whether mlx-lm has converted it."""
    shape = (128, 1, 4) if original else (128, 4, 1)
    return {"model.language_model.layers.0.linear_attn.conv1d.weight": mx.ones(shape)}


def write(
    folder: Path,
    config: dict[str, Any],
    files: dict[str, dict[str, mx.array]],
    metadata: dict[str, str] | None = None,
) -> Path:
    """Writes config and safetensors files, with an index when there are several next to the config."""
    for name, tensors in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        mx.save_safetensors(str(folder / name), tensors, metadata or {})
    (folder / "config.json").write_text(json.dumps(config))
    shards = {name: tensors for name, tensors in files.items() if "-of-" in name}
    if shards:
        weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def write_original(folder: Path, head: QwenHead, kind: str = "dense") -> Path:
    """A checkpoint as published: index, target shard, head tensors spread over two shards."""
    tensors = list(as_published(head).items())
    shards = {
        "model-00001-of-00002.safetensors": trunk(original=True) | dict(tensors[:4]),
        "model-00002-of-00002.safetensors": dict(tensors[4:]),
    }
    return write(folder, target_config(kind), shards, {"format": "pt"})


def transparent_target() -> Target:
    """A target whose layers pass their input on: its choice depends on the last token alone."""
    model: Any = tiny.qwen3_5_model()
    for layer in model.layers:
        outputs = [
            layer.mlp.down_proj,
            layer.linear_attn.out_proj if layer.is_linear else layer.self_attn.o_proj,
        ]
        for linear in outputs:
            linear.weight = mx.zeros_like(linear.weight)
    return Target(model)


def transparent_head(target: Target) -> dict[str, mx.array]:
    """The parameters of the head that foresees a transparent target's choices."""
    tensors = parameters(random_head())
    ones = mx.ones((64,))
    fc = mx.concatenate([mx.eye(64), mx.zeros((64, 64))], axis=1)
    final: Any = target.model
    return tensors | {
        "fc.weight": fc,
        "pre_fc_norm_embedding.weight": ones,
        "norm.weight": final.language_model.model.norm.weight,
        "layers.0.mlp.down_proj.weight": mx.zeros_like(tensors["layers.0.mlp.down_proj.weight"]),
        "layers.0.self_attn.o_proj.weight": mx.zeros_like(tensors["layers.0.self_attn.o_proj.weight"]),
    }
