"""Tiny random heads of the families that ship their own drafters, and folders holding them."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from speculative.gemma_assistant import Assistant, AssistantConfig
from speculative.glm_drafter import GlmHead, GlmHeadConfig
from tests.speculative import tiny

ASSISTANT_TEXT: dict[str, Any] = {
    "model_type": "gemma4_text",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "vocab_size": tiny.VOCAB,
    "sliding_window": tiny.WINDOW,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "final_logit_softcapping": None,
    "num_kv_shared_layers": 0,
}
CLUSTERS = {"use_ordered_embeddings": True, "num_centroids": 8, "centroid_intermediate_top_k": 3}


def glm_fields(**changes: Any) -> dict[str, Any]:
    """A split GLM head's configuration; the changes are to the target's."""
    return {"model_type": "glm4_moe_lite_mtp", "block_size": 2, "text_config": tiny.GLM_FIELDS | changes}


def glm_head(**changes: Any) -> tuple[GlmHead, GlmHeadConfig]:
    config = GlmHeadConfig(text_config=glm_fields(**changes)["text_config"])
    head = tiny.randomise(GlmHead(config.args), seed=2)
    assert isinstance(head, GlmHead)
    return head, config


def assistant_fields(text: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """An assistant's configuration; `text` changes its layers."""
    fields = {"model_type": "gemma4_assistant", "backbone_hidden_size": 64, "num_centroids": 2048}
    return fields | {"text_config": ASSISTANT_TEXT | (text or {})} | changes


def assistant(text: dict[str, Any] | None = None, **changes: Any) -> tuple[Assistant, AssistantConfig]:
    fields = assistant_fields(text, **changes)
    del fields["model_type"]
    config = AssistantConfig(**fields)
    model = tiny.randomise(Assistant(config), seed=4)
    assert isinstance(model, Assistant)
    if config.use_ordered_embeddings:
        order = mx.random.permutation(config.args.vocab_size, key=mx.random.key(8))
        model.masked_embedding.token_ordering = order.astype(mx.int32)
    return model, config


def save(folder: Path, fields: dict[str, Any], tensors: dict[str, mx.array]) -> Path:
    """A checkpoint folder with these contents."""
    (folder / "config.json").write_text(json.dumps(fields))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})
    return folder


def split_glm_tensors(head: GlmHead) -> dict[str, mx.array]:
    """The head as a split checkpoint stores it, copies of embedding and output head included."""
    copy = mx.ones((tiny.VOCAB, 64))
    flat: dict[str, mx.array] = dict(tree_flatten(head.parameters()))
    tensors = {f"model.{name}": array for name, array in flat.items()}
    return tensors | {"model.embed_tokens.weight": copy, "lm_head.weight": copy}


def published_glm_tensors(head: GlmHead) -> dict[str, mx.array]:
    """The head as the layer after the last one of a published checkpoint, experts apart and KV fused."""
    layer = f"model.layers.{tiny.GLM_FIELDS['num_hidden_layers']}."
    flat = dict(tree_flatten(head.parameters()))
    key, value = (
        flat.pop("mtp_block.self_attn.embed_q.weight"),
        flat.pop("mtp_block.self_attn.unembed_out.weight"),
    )
    fused = mx.concatenate([key.swapaxes(-1, -2), value], axis=1)
    flat["mtp_block.self_attn.kv_b_proj.weight"] = fused.reshape(-1, fused.shape[-1])
    for name in [name for name in flat if "switch_mlp" in name]:
        for expert, weight in enumerate(flat.pop(name)):
            flat[name.replace("switch_mlp", f"experts.{expert}")] = weight
    flat["shared_head.norm.weight"] = flat.pop("shared_head_norm.weight")
    flat["shared_head.head.weight"] = flat["embed_tokens.weight"] = mx.ones((tiny.VOCAB, 64))
    return {layer + name.removeprefix("mtp_block."): array for name, array in flat.items()}
