"""A tiny Inkling checkpoint in the names and layouts a published one uses."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from speculative.inkling_head import InklingHead
from speculative.inkling_model import Model, ModelArgs
from tests.speculative import tiny

DEPTHS = 3
LOCAL_DEPTHS = [0, 2]

_NAMES = {
    "self_attn.q_proj.weight": "attn.wq_du.weight",
    "self_attn.k_proj.weight": "attn.wk_dv.weight",
    "self_attn.v_proj.weight": "attn.wv_dv.weight",
    "self_attn.r_proj.weight": "attn.wr_du.weight",
    "self_attn.o_proj.weight": "attn.wo_ud.weight",
    "self_attn.q_norm.weight": "attn.q_norm.weight",
    "self_attn.k_norm.weight": "attn.k_norm.weight",
    "self_attn.rel_proj": "attn.rel_logits_proj.proj",
    "self_attn.k_sconv.conv.weight": "attn.k_sconv.weight",
    "self_attn.v_sconv.conv.weight": "attn.v_sconv.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "mlp_norm.weight",
    "attn_sconv.conv.weight": "attn_sconv.weight",
    "mlp_sconv.conv.weight": "mlp_sconv.weight",
    "mlp.global_scale": "mlp.gate.global_scale",
    "mlp.gate.weight": "mlp.gate.weight",
    "mlp.e_score_correction_bias": "mlp.gate.bias",
    "mlp.switch_mlp.down_proj.weight": "mlp.experts.w2_weight",
    "mlp.shared_experts.down_proj.weight": "mlp.shared_experts.shared_w2_weight",
    "mlp.down_proj.weight": "mlp.w2_md.weight",
}
_FUSED = {
    "mlp.gate_proj.weight": ("mlp.up_proj.weight", "mlp.w13_dn.weight"),
    "mlp.switch_mlp.gate_proj.weight": ("mlp.switch_mlp.up_proj.weight", "mlp.experts.w13_weight"),
    "mlp.shared_experts.gate_proj.weight": (
        "mlp.shared_experts.up_proj.weight",
        "mlp.shared_experts.shared_w13_weight",
    ),
}
_TOP = {
    "model.embed_tokens.weight": "model.llm.embed.weight",
    "lm_head.weight": "model.llm.unembed.weight",
    "model.embed_norm.weight": "model.llm.embed_norm.weight",
    "model.norm.weight": "model.llm.norm.weight",
}


def head(seed: int = 4) -> InklingHead:
    made = tiny.randomise(InklingHead(args(), LOCAL_DEPTHS, DEPTHS, chains_normed=False), seed)
    assert isinstance(made, InklingHead)
    return made


def args() -> ModelArgs:
    return ModelArgs(**tiny.INKLING_FIELDS)


def published_layer(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """A decoder layer's tensors as a checkpoint stores them."""
    result: dict[str, mx.array] = {}
    ups = {up for up, _ in _FUSED.values()}
    for name, value in tensors.items():
        if name in _FUSED:
            up, fused = _FUSED[name]
            pair = mx.stack([value, tensors[up]], axis=-2)
            result[fused] = pair.reshape(*value.shape[:-2], -1, value.shape[-1])
        elif name not in ups:
            result[_NAMES[name]] = value.swapaxes(-1, -2) if "sconv" in name else value
    return result


def published(model: Model, depths: InklingHead) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """The checkpoint's tensors: text model, and MTP depths."""
    flat: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    text = {_TOP[name]: value for name, value in flat.items() if name in _TOP}
    for i, layer in enumerate(model.layers):
        own = published_layer(dict(tree_flatten(layer.parameters())))
        text |= {f"model.llm.layers.{i}.{name}": value for name, value in own.items()}
    mtp: dict[str, mx.array] = {}
    for j, depth in enumerate(depths.depths):
        block = published_layer(dict(tree_flatten(depth.transformer_block.parameters())))
        mtp |= {f"model.mtp.layers.{j}.transformer_block.{name}": value for name, value in block.items()}
        for part in ("hidden_norm", "embed_norm", "input_proj"):
            mtp[f"model.mtp.layers.{j}.{part}.weight"] = depth[part].weight
    return text, mtp


def write_checkpoint(folder: Path, model: Model, depths: InklingHead, *, side_file: bool = True) -> None:
    """A checkpoint folder with its depths in `mtp.safetensors` or among the shards."""
    folder.mkdir(parents=True)
    text, mtp = published(model, depths)
    vision = {"model.visual.encoder.weight": mx.ones((2, 2))}
    shard = text | vision | ({} if side_file else mtp)
    mx.save_safetensors(str(folder / "model-00001-of-00001.safetensors"), shard)
    if side_file:
        mx.save_safetensors(str(folder / "mtp.safetensors"), mtp)
    config: dict[str, Any] = {
        "model_type": "inkling_mm_model",
        "text_config": tiny.INKLING_FIELDS,
        "mtp_config": {"num_nextn_predict_layers": DEPTHS, "local_layer_ids": LOCAL_DEPTHS},
    }
    (folder / "config.json").write_text(json.dumps(config))
