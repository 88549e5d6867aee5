"""The drafter over a Gemma 4 assistant: what it reads of the target, computes and holds on to."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from speculative.draft_noise import DraftNoise
from speculative.gemma_assistant import Assistant, AssistantConfig
from speculative.gemma_drafter import AssistantState, GemmaDrafter, visible_rows
from tests.speculative import tiny
from tests.speculative.decoding import PROMPTS, generate, plain, start
from tests.speculative.drafters import scripted
from tests.speculative.family_heads import ASSISTANT_TEXT, CLUSTERS, assistant

HEADS, KV_HEADS = 4, 2
# The tiny target has layers sliding, full, sliding, full with caches, then two that share the last ones'.
SOURCES = {"sliding_attention": 2, "full_attention": 3}
Weights = dict[str, mx.array]
KV = dict[str, tuple[mx.array, mx.array]]


def norm(x: mx.array, weight: mx.array) -> mx.array:
    return x * mx.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def rotated(x: mx.array, position: int, kind: str) -> mx.array:
    """Rope of x [..., D] over halves: all of it when sliding, a quarter of it otherwise."""
    size = x.shape[-1]
    exponents = mx.arange(0, size, 2) / size
    angles = position * (1e4 if kind == "sliding_attention" else 1e6) ** -exponents
    if kind == "full_attention":
        angles = mx.where(mx.arange(size // 2) < size // 8, angles, 0.0)
    low, high = mx.split(x, 2, axis=-1)
    turned = low * mx.cos(angles) - high * mx.sin(angles), low * mx.sin(angles) + high * mx.cos(angles)
    return mx.concatenate(turned, axis=-1)


def gelu(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.tanh((2 / mx.pi) ** 0.5 * (x + 0.044715 * x**3)))


def attention(x: mx.array, w: Weights, kv: tuple[mx.array, mx.array], position: int, kind: str) -> mx.array:
    """Unscaled attention of one row x [h] to keys and values [kv heads, T, D]."""
    q = norm((w["q_proj.weight"] @ x).reshape(HEADS, -1), w["q_norm.weight"])
    q = rotated(q, position, kind)[:, None]
    keys, values = (mx.repeat(array, HEADS // KV_HEADS, axis=0) for array in kv)
    out = mx.softmax(q @ keys.swapaxes(-1, -2), axis=-1) @ values
    return w["o_proj.weight"] @ out.flatten()


def within(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}


def recomputed(w: Weights, embedding: mx.array, hidden: mx.array, kv: KV, position: int) -> mx.array:
    """One drafting step without mlx-lm: the assistant's normed hidden [h]."""
    x = w["pre_projection.weight"] @ mx.concatenate([embedding, hidden])
    for i, kind in enumerate(ASSISTANT_TEXT["layer_types"]):
        layer = within(w, f"model.layers.{i}.")
        out = attention(
            norm(x, layer["input_layernorm.weight"]), within(layer, "self_attn."), kv[kind], position, kind
        )
        x = x + norm(out, layer["post_attention_layernorm.weight"])
        row = norm(x, layer["pre_feedforward_layernorm.weight"])
        row = gelu(layer["mlp.gate_proj.weight"] @ row) * (layer["mlp.up_proj.weight"] @ row)
        x = x + norm(layer["mlp.down_proj.weight"] @ row, layer["post_feedforward_layernorm.weight"])
        x = x * layer["layer_scalar"]
    return norm(x, w["model.norm.weight"])


def best_of(w: Weights, hidden: mx.array, ordered: bool) -> int:
    """The proposed id: over the vocabulary, or over the three best of eight clusters of twelve."""
    scores: list[float] = (w["model.embed_tokens.weight"] @ hidden).tolist()  # pyright: ignore[reportAssignmentType]
    if not ordered:
        return max(range(tiny.VOCAB), key=scores.__getitem__)
    centroids: list[float] = (w["masked_embedding.centroids.weight"] @ hidden).tolist()  # pyright: ignore[reportAssignmentType]
    order: list[int] = w["masked_embedding.token_ordering"].tolist()  # pyright: ignore[reportAssignmentType]
    best = sorted(range(8), key=lambda c: -centroids[c])[:3]
    return max((i for c in best for i in order[12 * c : 12 * c + 12]), key=scores.__getitem__)


def rows_by_position(tokens: Sequence[int]) -> KV:
    """Keys and values [kv heads, T, D] a text has written to the read layers, noted one token at a time."""
    target = tiny.target("gemma4")
    caches = target.make_cache()
    noted: dict[str, list[list[mx.array]]] = {kind: [] for kind in SOURCES}
    for position, token in enumerate(tokens):
        target.forward(mx.array([[token]]), caches)
        for kind, index in SOURCES.items():
            cache = caches[index]
            slot = position % tiny.WINDOW if kind == "sliding_attention" else position
            noted[kind].append([mx.array(cache.keys[0, :, slot]), mx.array(cache.values[0, :, slot])])
        mx.eval(noted)
    return {
        kind: (mx.stack([k for k, _ in rows], axis=1), mx.stack([v for _, v in rows], axis=1))
        for kind, rows in noted.items()
    }


def bound(text: dict[str, Any] | None = None, **changes: Any) -> tuple[GemmaDrafter, Assistant]:
    model, config = assistant(text, **changes)
    drafter = GemmaDrafter(model, config)
    drafter.bind(tiny.target("gemma4"))
    return drafter, model


class Observed(GemmaDrafter):
    """Notes what it would propose and proposes what a script says, so that drafts are kept and refused."""

    def __init__(self, model: Assistant, config: AssistantConfig, text: Sequence[int]) -> None:
        super().__init__(model, config)
        self.bind(tiny.target("gemma4"))
        self.notes: list[tuple[int, list[int]]] = []
        self._script = scripted(text)
        self._history = self._script.make_state()

    def extend(self, state: AssistantState, tokens: Sequence[int], features: mx.array) -> None:
        super().extend(state, tokens, features)
        self._script.extend(self._history, tokens, features)

    def draft(
        self, state: AssistantState, depth: int, target_caches: Sequence[Any], noise: DraftNoise | None = None
    ) -> mx.array:
        proposals: Any = super().draft(state, depth, target_caches).tolist()
        self.notes.append((state.length, proposals))
        return self._script.draft(self._history, depth, target_caches)


@pytest.mark.parametrize(
    ("query_position", "clusters"), [("last", {}), ("bonus", CLUSTERS)], ids=["last-dense", "bonus-ordered"]
)
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_proposals_are_those_of_plain_arithmetic(
    prompt: list[int], clusters: dict[str, Any], query_position: str
) -> None:
    """After a prompt and after rounds the ids follow from the weights, the valid rows and one position."""
    target = tiny.target("gemma4")
    text = prompt + plain(target, prompt, 15).tokens
    model, config = assistant(query_position=query_position, **clusters)
    observed = Observed(model, config, text[len(prompt) :])
    assert generate(target, prompt, 12, observed, depth=3).tokens == text[len(prompt) :][:12]
    assert len(observed.notes) > 3
    rows, hiddens = rows_by_position(text), target.forward(mx.array([text]), target.make_cache()).hidden[0]
    for length, proposals in observed.notes:
        first = max(0, length - tiny.WINDOW)
        kv = {
            kind: tuple(array[:, first if kind == "sliding_attention" else 0 : length] for array in pair)
            for kind, pair in rows.items()
        }
        position = length - 1 if query_position == "last" else length
        weights = dict(tree_flatten(model.parameters()))
        token, hidden = text[length], hiddens[length - 1]
        for proposal in proposals:
            out = recomputed(weights, target.embed(mx.array(token)) * 8.0, hidden, kv, position)
            assert proposal == best_of(weights, out, bool(clusters))
            token, hidden = proposal, weights["post_projection.weight"] @ out


def filled(cache: Any, counts: Sequence[int]) -> Any:
    """A cache written in pieces of these many rows, each row holding its own position."""
    position = 0
    for count in counts:
        rows = mx.arange(position, position + count, dtype=mx.float32).reshape(1, 1, count, 1)
        cache.update_and_fetch(rows, -rows)
        position += count
    return cache


@pytest.mark.parametrize(
    "counts", [[3], [40], [9, 8], [8, *[1] * 5], [8, 1, 7, 1, 1], [*[1] * 21, 3], [1] * 30]
)
def test_a_window_is_read_in_order_and_to_its_size(counts: list[int]) -> None:
    """However a ring was written, its last rows come oldest first and never more than the window."""
    keys, values = visible_rows(filled(RotatingKVCache(8), counts))
    assert keys.flatten().tolist() == list(range(sum(counts)))[-8:]
    assert values.flatten().tolist() == [-float(i) for i in range(sum(counts))][-8:]


def test_rewound_rows_of_a_plain_cache_are_not_read() -> None:
    """Rows behind the offset are left in the buffer and stay unread."""
    cache = filled(KVCache(), [6])
    cache.trim(2)
    keys, values = visible_rows(cache)
    assert keys.flatten().tolist() == [0, 1, 2, 3]
    assert values.shape == keys.shape


def test_other_caches_are_not_read() -> None:
    """A cache whose rows are no plain arrays is refused by name."""
    with pytest.raises(ValueError, match="QuantizedKVCache"):
        visible_rows(QuantizedKVCache())


def test_nothing_of_the_targets_caches_is_held_on_to() -> None:
    """After drafting the target's next update writes in place: no view forces a copy of the buffers."""
    drafter, _ = bound()
    target = tiny.target("gemma4")
    burst, _ = start(target, PROMPTS["before the window"], drafter)
    rows = mx.zeros((1, KV_HEADS, 5000, 32))
    for index in (1, 3):
        burst.caches[index].update_and_fetch(rows, rows)
        mx.eval(burst.caches[index].state[:2])
    size = burst.caches[3].keys.nbytes
    drafts = drafter.draft(burst.state, 3, burst.caches)
    mx.eval(drafts)
    mx.synchronize()

    def growth() -> int:
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        row = mx.ones((1, KV_HEADS, 1, 32))
        burst.caches[3].update_and_fetch(row, row)
        mx.eval(burst.caches[3].keys, burst.caches[3].values)
        return mx.get_peak_memory() - before

    assert growth() < size
    view = visible_rows(burst.caches[3])
    mx.eval(view)
    assert growth() >= size


def test_drafting_needs_a_generated_token() -> None:
    """Before the drafter is bound, and before the first generated token is known, drafting is an error."""
    drafter, _ = bound()
    state = drafter.make_state()
    with pytest.raises(ValueError, match="no generated token"):
        drafter.draft(state, 2, [])
    drafter.extend(state, [1], mx.zeros((1, 1, 64)))
    drafter.prime(state, [2], mx.zeros((1, 1, 64)))
    with pytest.raises(ValueError, match="no generated token"):
        drafter.draft(state, 2, [])
    state = drafter.make_state()
    unbound = GemmaDrafter(*assistant())
    unbound.extend(state, [1], mx.zeros((1, 1, 64)))
    with pytest.raises(ValueError, match="no generated token"):
        unbound.draft(state, 2, [])


def test_priming_counts_pairs() -> None:
    """However a prompt is cut, every position but the last makes a pair and the last feature waits."""
    drafter, _ = bound()
    features = mx.random.normal((1, 9, 64), key=mx.random.key(1))
    for sizes in ([9], [1] * 9, [4, 5]):
        state, begin = drafter.make_state(), 0
        for size in sizes:
            drafter.prime(state, [1] * size, features[:, begin : begin + size])
            begin += size
        assert state.length == 8
        assert state.waiting is not None
        assert tiny.same_bytes(state.waiting, features[:, -1:])


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ({}, {"backbone_hidden_size": 32}, "hidden size 32, the target 64"),
        ({"vocab_size": 95}, {}, "95 tokens, the target 96"),
        ({"head_dim": 8}, {}, "sliding_attention heads of size 8, the target 16"),
        ({"layer_types": ["chunked_attention"] * 4}, {}, "chunked_attention layers, the target has"),
    ],
)
def test_an_incompatible_assistant_is_named(
    text: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    """An assistant of another width, vocabulary, head size or layer type is refused with both values."""
    with pytest.raises(ValueError, match=message):
        bound(text, **changes)


def test_a_target_of_another_family_is_refused() -> None:
    """A target whose layers have no attention types gives the assistant nothing to read."""
    with pytest.raises(ValueError, match="reads sliding_attention layers"):
        GemmaDrafter(*assistant()).bind(tiny.target("llama"))
