"""The GLM MTP head: its forward against plain arithmetic, its files, its limits."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from speculative.detect import DraftOptions, load_drafter
from speculative.glm_drafter import GlmHeadConfig, glm_drafter, load_glm_drafter
from speculative.head_weights import quantise_head
from tests.speculative import tiny
from tests.speculative.decoding import generate, plain
from tests.speculative.family_heads import (
    glm_fields,
    glm_head,
    published_glm_tensors,
    save,
    split_glm_tensors,
)

PROMPT = tiny.prompt(11)
HEADS, NOPE, ROPE, RANK, TOP = 4, 16, 16, 32, 2
Weights = dict[str, mx.array]


def norm(x: mx.array, weight: mx.array) -> mx.array:
    return x * mx.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def rotated(x: mx.array) -> mx.array:
    """Rope over neighbouring pairs of x [..., L, ROPE] at positions 0 to L - 1."""
    angles = mx.arange(x.shape[-2])[:, None] * 1e6 ** (-mx.arange(0, ROPE, 2) / ROPE)
    even, odd = x[..., ::2], x[..., 1::2]
    turned = even * mx.cos(angles) - odd * mx.sin(angles), even * mx.sin(angles) + odd * mx.cos(angles)
    return mx.stack(turned, axis=-1).reshape(x.shape)


def attention(x: mx.array, w: Weights) -> mx.array:
    """Latent attention with keys and values expanded per head; x [L, H]."""
    length = x.shape[0]
    q = norm(x @ w["q_a_proj.weight"].T, w["q_a_layernorm.weight"]) @ w["q_b_proj.weight"].T
    q = q.reshape(length, HEADS, NOPE + ROPE).swapaxes(0, 1)
    packed = x @ w["kv_a_proj_with_mqa.weight"].T
    latent = norm(packed[:, :RANK], w["kv_a_layernorm.weight"])
    keys = latent @ w["embed_q.weight"]
    values = latent @ w["unembed_out.weight"].swapaxes(-1, -2)
    scores = q[..., :NOPE] @ keys.swapaxes(-1, -2)
    scores = scores + rotated(q[..., NOPE:]) @ rotated(packed[:, RANK:]).T
    scores = mx.where(mx.tri(length) > 0, scores * (NOPE + ROPE) ** -0.5, -mx.inf)
    out = (mx.softmax(scores, axis=-1) @ values).swapaxes(0, 1)
    return out.reshape(length, -1) @ w["o_proj.weight"].T


def gated(x: mx.array, gate: mx.array, up: mx.array, down: mx.array) -> mx.array:
    hidden = x @ gate.T
    return (hidden * mx.sigmoid(hidden) * (x @ up.T)) @ down.T


def experts(x: mx.array, w: Weights) -> mx.array:
    """The two best of four experts for one row x [H], and the shared one."""
    scores = mx.sigmoid(w["gate.weight"] @ x)
    best: list[int] = mx.argsort(-(scores + w["gate.e_score_correction_bias"]))[:TOP].tolist()  # pyright: ignore[reportAssignmentType]
    total = sum(scores[i].item() for i in best)
    parts = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    out = gated(x, *(w[f"shared_experts.{part}"] for part in parts))
    for i in best:
        out = out + 1.8 * scores[i] / total * gated(x, *(w[f"switch_mlp.{part}"][i] for part in parts))
    return out


def within(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}


def recomputed(w: Weights, embeddings: mx.array, hiddens: mx.array) -> mx.array:
    """The head over all pairs at once, without mlx-lm; embeddings and hiddens [L, H]."""
    embeddings = mx.concatenate([mx.zeros((1, embeddings.shape[1])), embeddings[1:]])
    fused = mx.concatenate([norm(embeddings, w["enorm.weight"]), norm(hiddens, w["hnorm.weight"])], axis=-1)
    x = fused @ w["eh_proj.weight"].T
    block = within(w, "mtp_block.")
    x = x + attention(norm(x, block["input_layernorm.weight"]), within(block, "self_attn."))
    rows = norm(x, block["post_attention_layernorm.weight"])
    x = x + mx.stack([experts(row, within(block, "mlp.")) for row in rows])
    return norm(x, w["shared_head_norm.weight"])


def test_proposals_are_those_of_plain_arithmetic() -> None:
    """History and chained rows equal a recomputation from the weights, and so do the proposed ids."""
    target, (head, config) = tiny.target("glm4_moe_lite"), glm_head()
    drafter = glm_drafter(head, config)
    drafter.bind(target)
    features = target.forward(mx.array([PROMPT]), target.make_cache()).features
    state = drafter.make_state()
    drafter.prime(state, PROMPT[:4], features[:, :4])
    drafter.prime(state, PROMPT[4:], features[:, 4:])
    drafter.extend(state, [9], features[:, -1:])
    weights = dict(tree_flatten(head.parameters()))
    tokens, hiddens = [*PROMPT[1:], 9], features[0]
    proposals = drafter.draft(state, 3, []).tolist()
    for proposal in proposals:
        rows = recomputed(weights, target.embed(mx.array(tokens)), hiddens)
        if len(tokens) == len(PROMPT):
            assert state.last is not None
            assert mx.allclose(state.last[0, 0], rows[-1], atol=1e-4).item()
        assert proposal == mx.argmax(target.logits(rows[-1])).item()
        tokens, hiddens = [*tokens, proposal], mx.concatenate([hiddens, rows[-1:]])
    assert len(set(proposals)) > 1


def test_every_row_sees_the_rows_before_it() -> None:
    """One pass over several pairs gives for each what plain arithmetic gives, causally."""
    head, _ = glm_head()
    embeddings, hiddens = mx.random.normal((2, 1, 7, 64), key=mx.random.key(5))
    cache = head.make_cache()
    rows = [head(embeddings[:, part], hiddens[:, part], cache) for part in (slice(0, 4), slice(4, 7))]
    wanted = recomputed(dict(tree_flatten(head.parameters())), embeddings[0], hiddens[0])
    assert mx.allclose(mx.concatenate(rows, axis=1)[0], wanted, atol=1e-4).item()


def test_the_first_embedding_is_not_read() -> None:
    """At absolute position 0 the head sees no embedding, at the next position it does."""
    head, _ = glm_head()
    hiddens = mx.random.normal((1, 2, 64), key=mx.random.key(1))
    for row, same in ((0, True), (1, False)):
        one, other = mx.ones((1, 2, 64)), mx.ones((1, 2, 64))
        other[:, row] = 3 * mx.random.normal((64,), key=mx.random.key(2))
        outputs = [head(e, hiddens, head.make_cache())[:, row] for e in (one, other)]
        assert tiny.same_bytes(*outputs) == same


@pytest.mark.parametrize("layout", [split_glm_tensors, published_glm_tensors])
def test_both_layouts_load(tmp_path: Path, layout: object) -> None:
    """A split head and a published checkpoint's extra layer give the very head they were made from."""
    head, config = glm_head()
    save(tmp_path, glm_fields(), layout(head))  # pyright: ignore[reportCallIssue]
    target = tiny.target("glm4_moe_lite")
    loaded = load_drafter(tmp_path, target, DraftOptions(kind="mtp"))
    assert loaded.block_size == 2
    made = glm_drafter(head, config)
    made.bind(target)
    features = target.forward(mx.array([PROMPT]), target.make_cache()).features
    states = []
    for drafter in (loaded, made):
        state = drafter.make_state()
        drafter.extend(state, [*PROMPT[1:], 9], features)
        states.append(state)
    assert tiny.same_bytes(states[0].last, states[1].last)
    assert tiny.largest_difference(states[0].caches, states[1].caches) == 0.0


def test_a_quantised_head_loads_as_it_is_stored(tmp_path: Path) -> None:
    """Packed tensors keep their bits, per-head matrices and experts included; the text stays the target's."""
    head, _ = glm_head()
    quantise_head(head, 4, group_size=32)
    tensors = split_glm_tensors(head)
    assert "model.mtp_block.self_attn.unembed_out.scales" in tensors
    assert "model.mtp_block.mlp.switch_mlp.up_proj.scales" in tensors
    save(tmp_path, glm_fields(), tensors)
    target = tiny.target("glm4_moe_lite")
    drafter = load_drafter(tmp_path, target, DraftOptions())
    assert generate(target, PROMPT, 8, drafter, depth=2).tokens == plain(target, PROMPT, 8).tokens


def test_the_routers_bias_is_never_rounded(tmp_path: Path) -> None:
    """A head computing in half precision, quantised at load, keeps its router's bias and weight unpacked."""
    head, _ = glm_head()
    save(tmp_path, glm_fields(), split_glm_tensors(head))
    network = load_glm_drafter(tmp_path, mx.bfloat16, bits=4)._network
    loaded = dict(tree_flatten(network.parameters()))  # pyright: ignore[reportAttributeAccessIssue]
    bias = loaded["mtp_block.mlp.gate.e_score_correction_bias"]
    assert tiny.same_bytes(bias, head.mtp_block.mlp.gate.e_score_correction_bias)
    assert loaded["mtp_block.mlp.gate.weight"].dtype == mx.bfloat16
    assert loaded["eh_proj.weight"].dtype == mx.uint32
    assert loaded["eh_proj.scales"].dtype == mx.bfloat16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "hidden size 32, the target 64"),
        ({"vocab_size": 95}, "95 tokens, the target 96"),
    ],
)
def test_an_incompatible_head_is_named(tmp_path: Path, changes: dict[str, int], message: str) -> None:
    """A head of another width or vocabulary is refused at load with both values."""
    head, _ = glm_head(**changes)
    save(tmp_path, glm_fields(**changes), split_glm_tensors(head))
    with pytest.raises(ValueError, match=message):
        load_drafter(tmp_path, tiny.target("glm4_moe_lite"), DraftOptions())


def test_tensors_of_another_geometry_are_refused(tmp_path: Path) -> None:
    """A file that does not hold what its configuration says is an error naming the tensor."""
    head, _ = glm_head(moe_intermediate_size=16)
    save(tmp_path, glm_fields(), split_glm_tensors(head))
    with pytest.raises(ValueError, match=r"switch_mlp|shared_experts"):
        load_glm_drafter(tmp_path, mx.float32)


def test_a_block_has_something_to_verify() -> None:
    """A block of one row leaves no room for a draft."""
    with pytest.raises(ValueError, match="block_size is 1"):
        GlmHeadConfig(text_config={}, block_size=1)
