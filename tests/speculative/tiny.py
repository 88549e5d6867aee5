"""Tiny random float32 models of every family, and plain decode to compare with."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import gemma4, glm4_moe_lite, llama, qwen3_5, qwen3_next

from speculative import inkling_model as inkling
from speculative.target import Target

VOCAB = 96
WINDOW = 16


def randomise(model: nn.Module, seed: int = 0, scale: float = 0.25) -> nn.Module:
    """Seeded normal weights, norm weights near one: logits that differ clearly from token to token."""
    keys = iter(mx.random.split(mx.random.key(seed), len(tree_flatten(model.parameters()))))

    def draw(path: str, value: mx.array) -> mx.array:
        noise = mx.random.normal(value.shape, key=next(keys))
        if value.ndim == 1:
            return 1.0 + 0.1 * noise
        return scale * noise

    flat = [(path, draw(path, value)) for path, value in tree_flatten(model.parameters())]
    model.load_weights(flat)
    mx.eval(model.parameters())
    return model


def llama_model(scale: float = 0.25, **changes: Any) -> nn.Module:
    fields: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
    }
    return randomise(llama.Model(llama.ModelArgs(**(fields | changes))), scale=scale)


def sliding_llama_model() -> nn.Module:
    return llama_model(
        layer_types=["sliding_attention", "full_attention"], sliding_window=WINDOW, tie_word_embeddings=False
    )


def gemma4_model(shared: int = 2, per_layer: int = 16) -> nn.Module:
    text = {
        "hidden_size": 64,
        "num_hidden_layers": 6,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "vocab_size_per_layer_input": VOCAB,
        "num_kv_shared_layers": shared,
        "hidden_size_per_layer_input": per_layer,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    }
    return randomise(gemma4.Model(gemma4.ModelArgs(text_config=text, vocab_size=VOCAB)))


QWEN_TEXT = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
QWEN_MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 32,
    "moe_intermediate_size": 32,
}


def qwen3_5_model(**changes: Any) -> nn.Module:
    args = qwen3_5.ModelArgs(model_type="qwen3_5", text_config=QWEN_TEXT | changes)
    return randomise(qwen3_5.Model(args))


def qwen3_next_model() -> nn.Module:
    fields = QWEN_TEXT | QWEN_MOE | {"model_type": "qwen3_next", "decoder_sparse_step": 1}
    extra = {
        "mlp_only_layers": [],
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 4096,
    }
    return randomise(qwen3_next.Model(qwen3_next.ModelArgs.from_dict(fields | extra)))


GLM_FIELDS = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}


def glm_model() -> nn.Module:
    return randomise(glm4_moe_lite.Model(glm4_moe_lite.ModelArgs(**GLM_FIELDS)))


INKLING_FIELDS: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "vocab_size": VOCAB,
    "unpadded_vocab_size": VOCAB - 6,
    "logits_mup_width_multiplier": 2.0,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 16,
    "sliding_window_size": WINDOW,
    "local_layer_ids": [0, 2],
    "rel_extent": 20,
    "d_rel": 16,
    "log_scaling_n_floor": 12,
    "dense_mlp_idx": 1,
    "intermediate_size": 32,
    "dense_intermediate_size": 96,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
}


def inkling_model(**changes: Any) -> nn.Module:
    return randomise(inkling.Model(inkling.ModelArgs(**(INKLING_FIELDS | changes))))


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "llama": llama_model,
    "llama-sliding": sliding_llama_model,
    "gemma4": gemma4_model,
    "qwen3_5": qwen3_5_model,
    "qwen3_5-moe": lambda: qwen3_5_model(**QWEN_MOE),
    "qwen3_next": qwen3_next_model,
    "glm4_moe_lite": glm_model,
    "inkling": inkling_model,
}
FAMILIES = tuple(MAKERS)


@cache
def target(family: str) -> Target:
    """One target per family for the whole run; tests leave it as they found it."""
    return Target(MAKERS[family]())


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(i * 7 + 1 + salt * 13) % VOCAB for i in range(length)]


def prefill(target: Target, tokens: Sequence[int], chunk: int = 8) -> tuple[list[Any], mx.array]:
    """Caches after `tokens` and their features [1, L, F]."""
    caches = target.make_cache()
    features = []
    for start in range(0, len(tokens), chunk):
        out = target.forward(mx.array([tokens[start : start + chunk]]), caches)
        features.append(out.features)
        mx.eval(out.features, [c.state for c in caches])
    return caches, mx.concatenate(features, axis=1)


def greedy_chain(target: Target, caches: list[Any], first: int, steps: int) -> tuple[list[int], mx.array]:
    """Token-by-token greedy decode from `first`: the ids picked and their logits [steps, V]."""
    tokens, rows = [first], []
    for _ in range(steps):
        logits = target.forward(mx.array([[tokens[-1]]]), caches).logits[0]
        tokens.append(int(mx.argmax(logits[-1]).item()))
        rows.append(logits)
    return tokens[1:], mx.concatenate(rows)


def ordered_state(cache: Any) -> list[mx.array]:
    """The valid content of a cache in its physical order, for comparing bytes."""
    name = type(cache).__name__
    if name == "CacheList":
        return [array for member in cache.caches for array in ordered_state(member)]
    if name == "ArraysCache":
        return [array for array in cache.cache if array is not None]
    if name == "RotatingKVCache":
        return [*cache.keys_and_values(), mx.array([cache.offset, cache._idx])]
    return [*cache.keys_and_values(), mx.array([cache.offset])]


def same_bytes(left: mx.array, right: mx.array) -> bool:
    return left.shape == right.shape and bool(mx.array_equal(left, right).item())


def largest_difference(left: Sequence[Any], right: Sequence[Any]) -> float:
    """Largest absolute difference between two lists of caches; shapes must agree."""
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        for x, y in zip(ordered_state(a), ordered_state(b), strict=True):
            assert x.shape == y.shape
            worst = max(worst, float(mx.abs(x - y).max().item()))
    return worst


def frozen(caches: Sequence[Any]) -> list[list[mx.array]]:
    """Evaluated copies of the caches' contents."""
    return [tree_map(mx.array, ordered_state(cache)) for cache in caches]
