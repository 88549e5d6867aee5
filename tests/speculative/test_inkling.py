"""Inkling: the text model against plain arithmetic, its files, and its MTP depths as a drafter."""

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model
from msgspec.structs import replace

from speculative.detect import DraftOptions, load_drafter
from speculative.inkling_drafter import InklingDrafter
from speculative.inkling_model import Attention, Model, ModelArgs, ShortConvolution, make_layer_cache
from speculative.inkling_state import InklingState
from speculative.round import Burst, run_round
from speculative.target import Target
from tests.speculative import inkling_files, tiny
from tests.speculative.decoding import PROMPTS, generate, greedy, plain, start

PROMPT = PROMPTS["past the window"]


def bound(target: Target | None = None) -> InklingDrafter:
    drafter = InklingDrafter(inkling_files.head(), inkling_files.args())
    drafter.bind(target or tiny.target("inkling"))
    return drafter


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


@pytest.mark.parametrize("layer", [0, 1], ids=["local", "global"])
def test_attention_is_a_bias_by_distance(layer: int) -> None:
    """Scores are dot products over the head size plus a learned bias by distance, scaled by position."""
    args = inkling_files.args()
    attention: Any = tiny.randomise(Attention(args, layer), seed=1)
    x = mx.random.normal((1, 30, 64), key=mx.random.key(2))
    got = np.array(attention(x, None))[0]
    q = np.array(attention.q_norm(attention.q_proj(x).reshape(30, 4, 16)))
    k = np.array(attention.k_norm(attention.k_sconv(attention.k_proj(x), None, 0).reshape(30, -1, 16)))
    v = np.array(attention.v_sconv(attention.v_proj(x), None, 1).reshape(30, -1, 16))
    r, proj = np.array(attention.r_proj(x).reshape(30, 4, 16)), np.array(attention.rel_proj)
    extent, group = proj.shape[1], 4 // k.shape[1]
    rows = []
    for i in range(30):
        tau = 1.0
        if layer == 1:
            tau = 1 + args.log_scaling_alpha * math.log(max((i + 1) / 12, 1))
        first = max(0, i - tiny.WINDOW + 1) if layer == 0 else 0
        heads = []
        for h in range(4):
            bias = [r[i, h] @ proj[:, i - j] if i - j < extent else 0.0 for j in range(first, i + 1)]
            scores = k[first : i + 1, h // group] @ q[i, h] / 16 + np.array(bias)
            heads.append(softmax(tau * scores) @ v[first : i + 1, h // group])
        rows.append(np.concatenate(heads))
    wanted = np.stack(rows) @ np.array(attention.o_proj.weight).T
    assert np.allclose(got, wanted, atol=1e-4)


def test_convolution_adds_the_last_rows() -> None:
    """A row becomes itself plus the weighted last four rows, across calls that share a cache."""
    convolution: Any = tiny.randomise(ShortConvolution(8, 4), seed=3)
    x = mx.random.normal((1, 9, 8), key=mx.random.key(4))
    weight, padded = np.array(convolution.conv.weight)[:, :, 0], np.pad(np.array(x)[0], ((3, 0), (0, 0)))
    wanted = [padded[i + 3] + (padded[i : i + 4] * weight.T).sum(0) for i in range(9)]
    cache = make_layer_cache()[1]
    parts = [convolution(x[:, a:b], cache, 2) for a, b in ((0, 2), (2, 3), (3, 9))]
    assert np.allclose(np.array(mx.concatenate(parts, axis=1))[0], np.stack(wanted), atol=1e-5)


def test_experts_share_one_softmax() -> None:
    """Routed and shared experts are weighted together by their gates' log-sigmoids."""
    moe: Any = tiny.target("inkling").model.layers[1].mlp
    x = mx.random.normal((1, 1, 64), key=mx.random.key(5))
    gates = np.array(moe.gate(x))[0, 0]
    probability = 1 / (1 + np.exp(-gates))
    chosen = np.argsort(-(probability[:6] + np.array(moe.e_score_correction_bias)))[:2]
    weights = probability[[*chosen, 6, 7]]
    weights = weights / weights.sum() * 8.0 * np.array(moe.global_scale)
    outs = [np.array(moe.switch_mlp(x, mx.array([[[int(e)]]])))[0, 0, 0] for e in chosen]
    outs += [np.array(moe.shared_experts(x, mx.array([[[e]]])))[0, 0, 0] for e in (0, 1)]
    wanted = sum(w * out for w, out in zip(weights, outs, strict=True))
    assert np.allclose(np.array(moe(x))[0, 0], wanted, atol=1e-4)


@pytest.mark.parametrize("side_file", [True, False], ids=["mtp.safetensors", "shards"])
def test_a_published_checkpoint_loads(tmp_path: Path, side_file: bool) -> None:
    """Target and depths of one checkpoint folder load to the same numbers they were written from."""
    model, depths = tiny.inkling_model(), inkling_files.head()
    assert isinstance(model, Model)
    folder = tmp_path / "inkling"
    inkling_files.write_checkpoint(folder, model, depths, side_file=side_file)
    loaded, _ = load_model(folder, get_model_classes=lambda config: (Model, ModelArgs), strict=side_file)
    target = Target(loaded)
    tokens = mx.array([PROMPT])
    assert tiny.same_bytes(target.forward(tokens, target.make_cache()).logits, model(tokens))
    drafter = load_drafter(folder, target, DraftOptions(kind="mtp"))
    assert isinstance(drafter, InklingDrafter)
    assert drafter.block_size == 4
    reference = bound()
    assert generate(target, PROMPT, 8, drafter, depth=3).tokens == plain(target, PROMPT, 8).tokens
    assert drafts(drafter, target, PROMPT, 3) == drafts(reference, tiny.target("inkling"), PROMPT, 3)


def test_a_checkpoint_without_depths_is_no_drafter(tmp_path: Path) -> None:
    """A folder with the text model alone is not taken for an MTP drafter."""
    model = tiny.inkling_model()
    assert isinstance(model, Model)
    inkling_files.write_checkpoint(tmp_path / "a", model, inkling_files.head())
    (tmp_path / "a" / "mtp.safetensors").unlink()
    with pytest.raises(ValueError, match="no MTP drafter"):
        load_drafter(tmp_path / "a", tiny.target("inkling"), DraftOptions(kind="mtp"))


def teacher_forced(drafter: InklingDrafter, target: Target, tokens: list[int]) -> InklingState:
    state = drafter.make_state()
    features = target.forward(mx.array([tokens[:-1]]), target.make_cache()).features
    drafter.extend(state, tokens[1:], features)
    return state


def drafts(drafter: InklingDrafter, target: Target, tokens: list[int], depth: int) -> list[int]:
    return drafter.draft(teacher_forced(drafter, target, tokens), depth, []).tolist()  # pyright: ignore[reportReturnType]


def naive_drafts(tokens: list[int], depth: int) -> list[int]:
    """Proposals from whole sequences through every depth, without caches."""
    target, head = tiny.target("inkling"), inkling_files.head()
    rows = target.forward(mx.array([tokens[:-1]]), target.make_cache()).features
    known, ids = list(tokens), []
    for j in range(depth):
        shifted = mx.array([known[j + 1 : j + 1 + rows.shape[1]]])
        rows = head.depths[j](target.inner.embed(shifted), rows, None)
        best = int(mx.argmax(target.logits(target.inner.norm(rows[:, -1:]))).item())
        ids.append(best)
        known.append(best)
    return ids


@pytest.mark.parametrize("length", [2, 3, 9, 40])
def test_proposals_are_those_of_whole_sequences(length: int) -> None:
    """Each depth sees its full history: confirmed tokens where known, proposals beyond."""
    tokens = tiny.prompt(length)
    assert drafts(bound(), tiny.target("inkling"), tokens, 3) == naive_drafts(tokens, 3)


def test_histories_stay_exact_through_rounds() -> None:
    """After rounds of any depth, copies and plain steps the next proposals are those of the whole text."""
    target, drafter = tiny.target("inkling"), bound()
    text = list(PROMPT)
    burst, _ = start(target, PROMPT, drafter)
    text.append(burst.bonus)
    for depth in (3, 1, 0, 2, -2, 3, 0, 0, -3, -2, 3):
        # Negative: so many tokens are copied, right or wrong.
        copied = tuple(text[-2 + depth : -2]) if depth < 0 else ()
        done = run_round(replace(burst, copied=copied), abs(depth), greedy)
        text += done.emitted
        burst = Burst(
            target=target, caches=burst.caches, bonus=done.bonus, position=len(text), drafter=drafter,
            state=burst.state,
        )  # fmt: skip
        assert drafter.draft(burst.state, 3, []).tolist() == naive_drafts(text, 3)
        assert [burst.state.count(j) for j in range(3)] == [len(text) - 1 - j for j in range(3)]


def test_a_stored_history_is_complete() -> None:
    """Caches primed with a prefix and stored carry all that deeper depths need to go on."""
    target, drafter = tiny.target("inkling"), bound()
    features = target.forward(mx.array([PROMPT]), target.make_cache()).features
    primed = drafter.make_state()
    drafter.prime(primed, PROMPT[:16], features[:, :16])
    state = drafter.make_state()
    state.caches, state.length, state.waiting = primed.caches, 15, primed.waiting
    drafter.prime(state, PROMPT[16:], features[:, 16:])
    drafter.extend(state, [7], features[:, -1:])
    assert drafter.draft(state, 3, []).tolist() == naive_drafts([*PROMPT, 7], 3)


def test_unused_depths_do_not_pile_up_rows() -> None:
    """Decoding on and on without deep drafts keeps little, and deep drafts stay right afterwards."""
    target, drafter = tiny.target("inkling"), bound()
    tokens = tiny.prompt(180)
    features = target.forward(mx.array([tokens[:-1]]), target.make_cache()).features
    state = drafter.make_state()
    for i in range(0, 179, 2):
        drafter.extend(state, tokens[i + 1 : i + 3], features[:, i : i + 2])
        unread = state.unread(0)
        assert unread is not None
        assert unread.shape[1] <= 66
    assert drafter.draft(state, 3, []).tolist() == naive_drafts(tokens, 3)


def test_no_more_proposals_than_depths() -> None:
    """Asked for more, it proposes one token per depth, and a round verifies just those."""
    target, drafter = tiny.target("inkling"), bound()
    result = generate(target, PROMPT, 12, drafter, depth=5)
    assert {done.drafted for done in result.rounds} == {3}
    assert result.tokens == plain(target, PROMPT, 12).tokens


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [("llama", {}, "needs an Inkling target"), ("inkling", {"vocab_size": 90}, "96 tokens, the target 90")],
)
def test_another_target_is_refused(family: str, changes: dict[str, int], message: str) -> None:
    """Depths bind only to an Inkling target of their own width and vocabulary."""
    model = tiny.MAKERS[family]() if not changes else tiny.inkling_model(**changes)
    with pytest.raises(ValueError, match=message):
        bound(Target(model))


def test_drafting_needs_a_generated_token() -> None:
    """An unbound or merely primed drafter says what is missing."""
    drafter = InklingDrafter(inkling_files.head(), inkling_files.args())
    with pytest.raises(ValueError, match="no generated token"):
        drafter.draft(drafter.make_state(), 2, [])
    with pytest.raises(ValueError, match="not bound"):
        drafter.extend(drafter.make_state(), [1], mx.zeros((1, 1, 64)))
