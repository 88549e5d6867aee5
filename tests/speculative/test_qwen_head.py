"""The Qwen head as a network and as tensors, against a re-computation in plain array operations."""

from typing import Any

import mlx.core as mx
import pytest

from speculative.qwen_head import QwenHead, head_config, head_tensors, shift_norms
from tests.speculative import tiny
from tests.speculative.qwen_files import (
    TEXTS,
    as_published,
    config_of,
    parameters,
    prefixed,
    random_head,
    with_single_experts,
)

ROPE = {"dense": (0.25, 100000.0), "moe": (0.25, 100000.0), "next": (0.5, 10000.0)}


def norm(x: mx.array, weight: mx.array) -> mx.array:
    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def rotated(x: mx.array, dims: int, base: float) -> mx.array:
    """Rotates the first `dims` of x [heads, L, D] by position, halves paired."""
    half = dims // 2
    angles = mx.arange(x.shape[1])[:, None] * base ** (-mx.arange(half) / half)
    a, b, rest = x[..., :half], x[..., half:dims], x[..., dims:]
    cos, sin = mx.cos(angles), mx.sin(angles)
    return mx.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def attention(x: mx.array, w: dict[str, mx.array], fraction: float, base: float) -> mx.array:
    rows, heads, groups, size = x.shape[0], 4, 2, 32
    both = (x @ w["q_proj.weight"].T).reshape(rows, heads, 2 * size)
    queries, gate = both[..., :size], both[..., size:].reshape(rows, -1)
    keys = (x @ w["k_proj.weight"].T).reshape(rows, groups, size)
    values = (x @ w["v_proj.weight"].T).reshape(rows, groups, size).transpose(1, 0, 2)
    queries = rotated(norm(queries, w["q_norm.weight"]).transpose(1, 0, 2), int(size * fraction), base)
    keys = rotated(norm(keys, w["k_norm.weight"]).transpose(1, 0, 2), int(size * fraction), base)
    outputs = []
    for h in range(heads):
        scores = queries[h] @ keys[h // 2].T * size**-0.5
        scores = mx.where(mx.tri(rows), scores, -1e9)
        outputs.append(mx.softmax(scores, axis=-1) @ values[h // 2])
    joined = mx.stack(outputs, axis=1).reshape(rows, -1)
    return (joined * mx.sigmoid(gate)) @ w["o_proj.weight"].T


def silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def dense(x: mx.array, w: dict[str, mx.array], prefix: str = "") -> mx.array:
    gate, up = x @ w[f"{prefix}gate_proj.weight"].T, x @ w[f"{prefix}up_proj.weight"].T
    return (silu(gate) * up) @ w[f"{prefix}down_proj.weight"].T


def sparse(x: mx.array, w: dict[str, mx.array]) -> mx.array:
    """Every expert on every row, those outside a row's best two weighted with zero."""
    scores = mx.softmax(x @ w["gate.weight"].T, axis=-1)
    kept = mx.where(scores >= mx.sort(scores, axis=-1)[:, -2:-1], scores, 0)
    kept = kept / kept.sum(axis=-1, keepdims=True)
    total = mx.sigmoid(x @ w["shared_expert_gate.weight"].T) * dense(x, w, "shared_expert.")
    for e in range(kept.shape[1]):
        parts = {
            n: w[f"switch_mlp.{n}"][e] for n in ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
        }
        total = total + kept[:, e : e + 1] * dense(x, parts)
    return total


def below(tensors: dict[str, mx.array], prefix: str) -> dict[str, mx.array]:
    return {n.removeprefix(prefix): a for n, a in tensors.items() if n.startswith(prefix)}


def recomputed(head: QwenHead, kind: str, embeddings: mx.array, hiddens: mx.array) -> mx.array:
    """The head's output [L, H] from rows [L, H]."""
    w = parameters(head)
    first = norm(embeddings, w["pre_fc_norm_embedding.weight"])
    second = norm(hiddens, w["pre_fc_norm_hidden.weight"])
    x = mx.concatenate([first, second], axis=-1) @ w["fc.weight"].T
    layer = below(w, "layers.0.")
    x = x + attention(norm(x, layer["input_layernorm.weight"]), below(layer, "self_attn."), *ROPE[kind])
    mlp = dense if kind == "dense" else sparse
    x = x + mlp(norm(x, layer["post_attention_layernorm.weight"]), below(layer, "mlp."))
    return norm(x, w["norm.weight"])


def rows(length: int) -> tuple[mx.array, mx.array]:
    left, right = mx.random.split(mx.random.key(8), 2)
    return mx.random.normal((1, length, 64), key=left), mx.random.normal((1, length, 64), key=right)


@pytest.mark.parametrize("kind", TEXTS)
def test_forward_is_what_the_formula_says(kind: str) -> None:
    """Embedding first, norms, gated attention from position 0, MLP or experts, final norm."""
    head = random_head(kind)
    embeddings, hiddens = rows(7)
    wanted = recomputed(head, kind, embeddings[0], hiddens[0])
    got = head(embeddings, head.fuse(hiddens), head.make_cache())[0]
    assert mx.allclose(got, wanted, atol=1e-3, rtol=1e-3).item()


@pytest.mark.parametrize("kind", TEXTS)
def test_cached_steps_equal_one_pass(kind: str) -> None:
    """Pairs fed one by one give the rows of one pass, and the cache holds one slot per pair."""
    head = random_head(kind)
    embeddings, hiddens = rows(5)
    whole, cache = head(embeddings, hiddens, head.make_cache()), head.make_cache()
    steps = [head(embeddings[:, i : i + 1], hiddens[:, i : i + 1], cache) for i in range(5)]
    assert mx.allclose(whole, mx.concatenate(steps, axis=1), atol=1e-4).item()
    assert [c.offset for c in cache] == [5]


def unprefixed(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    return below(tensors, "mtp.")


@pytest.mark.parametrize("publish", [as_published, with_single_experts])
@pytest.mark.parametrize("kind", TEXTS)
def test_published_tensors_become_parameters(kind: str, publish: Any) -> None:
    """Fused or single experts and zero-centred norms turn into exactly the parameters they came from."""
    head = random_head(kind)
    got = shift_norms(head_tensors(unprefixed(publish(head))))
    wanted = parameters(head)
    assert got.keys() == wanted.keys()
    assert all(mx.allclose(got[name], wanted[name], atol=1e-6).item() for name in wanted)


def test_copies_of_the_targets_tables_are_dropped() -> None:
    """Embedding table and output head inside a head's file are no parameters of the head."""
    copies = {"embed_tokens.weight": mx.ones((4, 4)), "lm_head.weight": mx.ones((4, 4))}
    tensors = parameters(random_head())
    assert head_tensors(tensors | copies).keys() == tensors.keys()


def test_all_and_only_norms_are_shifted() -> None:
    """The 1 reaches all seven norms and nothing else."""
    tensors = parameters(random_head("moe"))
    shifted = shift_norms(tensors)
    changed = {name for name in tensors if not mx.array_equal(shifted[name], tensors[name]).item()}
    assert changed == {
        "pre_fc_norm_embedding.weight",
        "pre_fc_norm_hidden.weight",
        "norm.weight",
        *prefixed(dict.fromkeys(("input_layernorm.weight", "post_attention_layernorm.weight")), "layers.0."),
        *prefixed(dict.fromkeys(("q_norm.weight", "k_norm.weight")), "layers.0.self_attn."),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers is 2"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings"),
    ],
)
def test_heads_that_cannot_be_run_are_refused(changes: dict[str, Any], message: str) -> None:
    """A configuration without sizes, with several layers or with embeddings of its own is an error."""
    with pytest.raises(ValueError, match=message):
        head_config({"text_config": tiny.QWEN_TEXT | changes})


def test_block_size_is_read_and_checked() -> None:
    """The block size is the configured one, 3 when there is none, and at least 2."""
    assert head_config({"text_config": tiny.QWEN_TEXT, "block_size": 5}).block_size == 5
    assert config_of("next").block_size == 3
    with pytest.raises(ValueError, match="block_size is 1"):
        head_config({"text_config": tiny.QWEN_TEXT, "block_size": 1})
