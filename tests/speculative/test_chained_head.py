"""The drafter around a head with KV of its own: exact history, shared parts, drafting."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from msgspec.structs import replace

from speculative.chained_head import ChainedHeadDrafter
from speculative.generic_drafter import generic_drafter, load_generic_drafter
from speculative.generic_head import GenericHead, GenericHeadConfig, HeadFiles, save_generic_head
from speculative.head_state import HeadState
from speculative.round import run_round
from speculative.target import Target
from tests.speculative import tiny
from tests.speculative.decoding import Burst, generate, greedy, plain, start

PROMPT = tiny.prompt(20)


def head_files(draft_vocab: list[int] | None = None, **changes: object) -> HeadFiles:
    fields: dict[str, object] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": tiny.VOCAB,
        "draft_vocab_size": len(draft_vocab) if draft_vocab else None,
    }
    config = GenericHeadConfig(**(fields | changes))  # pyright: ignore[reportArgumentType]
    head = tiny.randomise(GenericHead(config), seed=2)
    assert isinstance(head, GenericHead)
    return HeadFiles(head, config, mx.array(draft_vocab) if draft_vocab else None)


def bound(files: HeadFiles | None = None, target: Target | None = None) -> ChainedHeadDrafter:
    drafter = generic_drafter(files or head_files())
    drafter.bind(target or tiny.target("llama"))
    return drafter


def teacher_forced(drafter: ChainedHeadDrafter, tokens: list[int]) -> HeadState:
    """The history of a text given in one piece."""
    target = tiny.target("llama")
    state = drafter.make_state()
    features = target.forward(mx.array([tokens[:-1]]), target.make_cache()).features
    drafter.extend(state, tokens[1:], features)
    return state


def test_history_is_exact_after_rounds_and_plain_steps() -> None:
    """After any mix of rounds and plain steps the head's KV holds exactly the pairs of the emitted text."""
    drafter = bound()
    burst, _ = start(tiny.target("llama"), PROMPT, drafter)
    tokens = [burst.bonus]
    for depth in (3, 3, 0, 5, 0, 1):
        done = run_round(burst, depth, greedy)
        tokens += done.emitted
        burst = Burst(
            target=burst.target, caches=burst.caches, bonus=done.bonus, position=len(tokens), drafter=drafter,
            state=burst.state,
        )  # fmt: skip
    reference = teacher_forced(drafter, PROMPT + tokens)
    burst.state.drop_chained()
    assert burst.state.length == len(PROMPT) + len(tokens) - 1
    assert tiny.largest_difference(burst.state.caches, reference.caches) < 1e-4
    assert burst.state.last is not None
    assert reference.last is not None
    assert mx.allclose(burst.state.last, reference.last, atol=1e-4).item()


def test_history_is_exact_after_copied_rounds() -> None:
    """Rounds in which the head was not asked leave no hole, nor do rows it chained before them."""
    drafter, target = bound(), tiny.target("llama")
    burst, _ = start(target, PROMPT, drafter)
    wanted = plain(target, PROMPT, 24).tokens
    tokens = [burst.bonus]
    for kept in (3, None, 0, 1, None, 2):
        ahead = wanted[len(tokens) : len(tokens) + 3]
        copied = () if kept is None else (*ahead[:kept], *((t + 1) % tiny.VOCAB for t in ahead[kept:]))
        done = run_round(replace(burst, copied=copied), 3, greedy)
        tokens += done.emitted
        burst = replace(burst, bonus=done.bonus, position=len(tokens))
    assert tokens == wanted[: len(tokens)]
    reference = teacher_forced(drafter, PROMPT + tokens)
    assert drafter.draft(burst.state, 3, []).tolist() == drafter.draft(reference, 3, []).tolist()
    burst.state.drop_chained()
    reference.drop_chained()
    assert tiny.largest_difference(burst.state.caches, reference.caches) < 1e-4


def test_priming_in_chunks_equals_priming_at_once() -> None:
    """However a prompt is cut into chunks, no pair is lost and the last feature waits."""
    drafter, target = bound(), tiny.target("llama")
    features = target.forward(mx.array([PROMPT]), target.make_cache()).features
    whole = drafter.make_state()
    drafter.prime(whole, PROMPT, features)
    for sizes in ([1] * 20, [1, 19], [7, 8, 5]):
        state, begin = drafter.make_state(), 0
        for size in sizes:
            drafter.prime(state, PROMPT[begin : begin + size], features[:, begin : begin + size])
            begin += size
        assert state.length == whole.length == 19
        assert tiny.largest_difference(state.caches, whole.caches) < 1e-4
        assert state.waiting is not None
        assert tiny.same_bytes(state.waiting, features[:, -1:])


def test_proposals_chain_the_heads_own_rows() -> None:
    """The first proposal comes from the newest pair, each later one from the head's own output."""
    drafter, target = bound(), tiny.target("llama")
    files = head_files()
    state = teacher_forced(drafter, PROMPT)
    proposals = drafter.draft(state, 3, [])
    cache, features = (
        files.head.make_cache(),
        target.forward(mx.array([PROMPT]), target.make_cache()).features,
    )
    hidden = files.head(target.embed(mx.array([PROMPT[1:]])), features[:, :-1], cache)[:, -1:]
    wanted = []
    for _ in range(3):
        best = mx.argmax(target.logits(hidden), axis=-1)
        wanted.append(best.item())
        hidden = files.head(target.embed(best), hidden, cache)
    assert proposals.tolist() == wanted
    assert proposals.dtype == mx.int32
    assert drafter.draft(state, 3, []).tolist() == wanted


def test_reduced_vocabulary_proposes_only_its_ids() -> None:
    """With a draft vocabulary the best id among it is proposed, as a target id."""
    ids = [90, 3, 41]
    drafter = bound(head_files(ids))
    state = teacher_forced(drafter, PROMPT)
    assert state.last is not None
    row = tiny.target("llama").logits(state.last)[0, 0]
    best = max(ids, key=lambda i: row[i].item())
    assert drafter.draft(state, 1, []).tolist() == [best]


def test_reduced_vocabulary_of_a_quantised_head() -> None:
    """Rows of a quantised output head are gathered as they are."""
    target = Target(tiny.llama_model(tie_word_embeddings=False))
    nn.quantize(target.model, 32, 4, class_predicate=lambda path, _: path.endswith("lm_head"))
    drafter = bound(head_files([90, 3, 41]), target)
    state = drafter.make_state()
    features = target.forward(mx.array([PROMPT]), target.make_cache()).features
    drafter.extend(state, [*PROMPT[1:], 4], features)
    assert state.last is not None
    row = target.logits(state.last)[0, 0]
    assert drafter.draft(state, 1, []).tolist() == [max([90, 3, 41], key=lambda i: row[i].item())]


def test_a_head_may_read_several_layers() -> None:
    """A head with taps drafts from the tapped layers and chains from its own hidden."""
    target = Target(tiny.llama_model())
    drafter = bound(head_files(tap_layers=(0, 1, 2)), target)
    wanted = plain(target, PROMPT, 12).tokens
    assert generate(target, PROMPT, 12, drafter, depth=3).tokens == wanted


@pytest.mark.parametrize("draft_vocab", [None, [90, 3, 41]], ids=["whole", "reduced"])
def test_no_weight_of_the_target_is_the_drafters_own(draft_vocab: list[int] | None) -> None:
    """What may be rounded is the head and the rows gathered for it, never what the target multiplies by."""
    files, target = head_files(draft_vocab), tiny.target("llama")
    own = {id(weight) for weight in bound(files, target).own_weights}
    head = {id(weight) for _, weight in tree_flatten(files.head.parameters())}
    shared = {id(weight) for _, weight in tree_flatten(target.model.parameters())}
    assert head <= own
    assert len(own - head) == (0 if draft_vocab is None else 1)
    assert not own & shared


def test_scales_of_quantised_weights_are_not_multiplied_by() -> None:
    """A quantised head over a quantised target has float matrices, none of which is a weight."""
    files, target = head_files([90, 3, 41]), Target(tiny.llama_model())
    nn.quantize(files.head, 32, 4)
    nn.quantize(target.model, 32, 4)
    own = bound(files, target).own_weights
    assert any(weight.dtype == mx.uint32 for weight in own)
    assert not any(weight.ndim == 2 and weight.dtype == mx.float32 for weight in own)


def test_rewinding_a_history_for_reuse() -> None:
    """A stored history cut back to a prefix continues as if the rest had never been."""
    drafter = bound()
    state = teacher_forced(drafter, [*PROMPT, 5, 6, 7])
    state.rewind(len(PROMPT) - 1)
    assert tiny.largest_difference(state.caches, teacher_forced(drafter, PROMPT).caches) < 1e-5
    with pytest.raises(ValueError, match="legal is 0 to 19"):
        state.rewind(20)


def test_drafting_needs_a_generated_token() -> None:
    """Drafting right after priming, before the first generated token is known, is an error."""
    drafter = bound()
    state = drafter.make_state()
    features = tiny.target("llama").forward(mx.array([PROMPT]), tiny.target("llama").make_cache()).features
    drafter.prime(state, PROMPT, features)
    with pytest.raises(ValueError, match="no generated token"):
        drafter.draft(state, 2, [])


def test_an_unbound_drafter_says_so() -> None:
    """Using a head before it is bound to a target is an error that says so."""
    drafter = generic_drafter(head_files())
    with pytest.raises(ValueError, match="not bound"):
        drafter.extend(drafter.make_state(), [1], mx.zeros((1, 1, 64)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "hidden size 32, the target 64"),
        ({"vocab_size": 95}, "95 tokens, the target 96"),
        ({"tap_layers": (7,)}, "the target has 2"),
    ],
)
def test_an_incompatible_head_is_named(changes: dict[str, object], message: str) -> None:
    """Binding a head to a target of another width, vocabulary or depth is an error with both values."""
    with pytest.raises(ValueError, match=message):
        bound(head_files(**changes))


def test_a_folder_is_loaded_quantised_when_asked(tmp_path: Path) -> None:
    """Quantising at load changes proposals at most, never the text."""
    save_generic_head(tmp_path, head_files())
    drafter = load_generic_drafter(tmp_path, mx.float32, bits=4)
    target = tiny.target("llama")
    drafter.bind(target)
    assert generate(target, PROMPT, 10, drafter, depth=2).tokens == plain(target, PROMPT, 10).tokens
    with pytest.raises(ValueError, match="legal are 2, 3, 4"):
        load_generic_drafter(tmp_path, mx.float32, bits=7)
