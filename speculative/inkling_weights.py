"""Inkling's tensor names: what checkpoints call them, and what the modules here do.

Owns the translation of both the text model and the MTP depths. Knows no network and no folder.
"""

import mlx.core as mx

Tensors = dict[str, mx.array]

_ATTENTION = {
    "wq_du": "self_attn.q_proj",
    "wk_dv": "self_attn.k_proj",
    "wv_dv": "self_attn.v_proj",
    "wr_du": "self_attn.r_proj",
    "wo_ud": "self_attn.o_proj",
}
_RENAMED = {
    **{f"attn.{theirs}.weight": f"{ours}.weight" for theirs, ours in _ATTENTION.items()},
    "attn.q_norm.weight": "self_attn.q_norm.weight",
    "attn.k_norm.weight": "self_attn.k_norm.weight",
    "attn.rel_logits_proj.proj": "self_attn.rel_proj",
    "attn_norm.weight": "input_layernorm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.bias": "mlp.e_score_correction_bias",
    "mlp.gate.global_scale": "mlp.global_scale",
    "mlp.experts.w2_weight": "mlp.switch_mlp.down_proj.weight",
    "mlp.shared_experts.shared_w2_weight": "mlp.shared_experts.down_proj.weight",
    "mlp.w2_md.weight": "mlp.down_proj.weight",
}
_CONVOLUTIONS = {
    "attn.k_sconv.weight": "self_attn.k_sconv.conv.weight",
    "attn.v_sconv.weight": "self_attn.v_sconv.conv.weight",
    "attn_sconv.weight": "attn_sconv.conv.weight",
    "mlp_sconv.weight": "mlp_sconv.conv.weight",
}
# Gate and up projection in one tensor, their rows taking turns.
_INTERLEAVED = {
    "mlp.w13_dn.weight": "mlp",
    "mlp.experts.w13_weight": "mlp.switch_mlp",
    "mlp.shared_experts.shared_w13_weight": "mlp.shared_experts",
}
_TOP = {
    "model.llm.embed.weight": "model.embed_tokens.weight",
    "model.llm.unembed.weight": "lm_head.weight",
    "model.llm.embed_norm.weight": "model.embed_norm.weight",
    "model.llm.norm.weight": "model.norm.weight",
}
_LAYERS = "model.llm.layers."
_DEPTHS = "model.mtp.layers."
_MTP = "model.mtp."


def layer_tensors(name: str, value: mx.array) -> Tensors:
    """One tensor of a decoder layer, named from the layer on, as the layer's own tensors."""
    if name in _CONVOLUTIONS:
        # [C, 1, kernel] to MLX's [C, kernel, 1].
        return {_CONVOLUTIONS[name]: value.swapaxes(-1, -2)}
    if name in _INTERLEAVED:
        prefix = _INTERLEAVED[name]
        return {
            f"{prefix}.gate_proj.weight": mx.contiguous(value[..., 0::2, :]),
            f"{prefix}.up_proj.weight": mx.contiguous(value[..., 1::2, :]),
        }
    return {_RENAMED.get(name, name): value}


def text_tensors(tensors: Tensors) -> Tensors:
    """The text model's tensors of a checkpoint; vision, audio and MTP tensors are left out.

    Names that are not a checkpoint's own pass through, so that converted files load as well.
    """
    result: Tensors = {}
    for full_name, value in tensors.items():
        name = full_name.removeprefix("language_model.")
        if name.startswith((_MTP, "model.visual.", "model.audio.")):
            continue
        if name.startswith(_LAYERS):
            index, rest = name.removeprefix(_LAYERS).split(".", 1)
            converted = layer_tensors(rest, value)
            result |= {f"model.layers.{index}.{ours}": part for ours, part in converted.items()}
        else:
            result[_TOP.get(name, name)] = value
    return result


def depth_tensors(tensors: Tensors) -> Tensors:
    """The MTP tensors of a checkpoint or of its side file, named `depths.<j>.` and `chain_norm.`."""
    result: Tensors = {}
    for name, value in tensors.items():
        if not name.startswith(_MTP):
            continue
        if not name.startswith(_DEPTHS):
            result[name.removeprefix(_MTP)] = value
            continue
        depth, rest = name.removeprefix(_DEPTHS).split(".", 1)
        block, inner = rest.split(".", 1)
        converted = layer_tensors(inner, value) if block == "transformer_block" else {inner: value}
        result |= {f"depths.{depth}.{block}.{ours}": part for ours, part in converted.items()}
    return result
