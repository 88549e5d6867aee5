"""A whole run on the tiny target: files, resuming, learning, refusals."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from msgspec.structs import replace

from speculative.fitting.answers import answer_prompts
from speculative.fitting.asking import user_turn
from speculative.fitting.config import FitConfig, TrainConfig
from speculative.fitting.data import Example, draft_vocabulary, load_examples
from speculative.fitting.fit import fit
from speculative.fitting.generate import GenerateConfig, Row, batches, encoded, generate
from speculative.fitting.initial import head_config, initial_head
from speculative.fitting.progress import Progress
from speculative.fitting.report import recipe
from speculative.fitting.taps import output_head, tapped
from speculative.fitting.train import Output, Step, Trainer
from speculative.generic_head import GenericHead, load_generic_head


def settings(**changes: Any) -> TrainConfig:
    fields: dict[str, Any] = {
        "draft_vocab_size": 48,
        "steps": 6,
        "warmup_steps": 1,
        "batch_tokens": 64,
        "checkpoint_every": 2,
        "evaluate_every": 3,
        "depth_shares": (1.0, 0.5),
    }
    return TrainConfig(**(fields | changes))


def test_a_run_writes_a_head_that_loads(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """fit() leaves a float16 head of the asked geometry and a report; a second call repeats the report."""
    config = FitConfig(
        generate=GenerateConfig(batch_size=8, max_answer_tokens=6, tap_layers=(1, 3)),
        train=settings(num_layers=2, tap_layers=(1, 3)),
        answer_tokens=60,
        held_out_per_kind=1,
    )
    seen: list[Progress] = []
    report = fit(config, model, tokenizer, tmp_path, seen.append)
    files = load_generic_head(tmp_path)
    assert (files.config.num_layers, files.config.tap_layers, files.config.draft_vocab_size) == (
        2,
        (1, 3),
        48,
    )
    assert {v.dtype for _, v in tree_flatten(files.head.parameters())} == {mx.float16}
    assert {p.phase for p in seen} == {"asking", "corpus", "held-out", "start", "train", "report"}
    assert "asked" in report.by_kind
    assert report.answer_tokens >= 60
    assert [p.step for p in report.curve] == [0, 3, 6]
    assert "| all |" in recipe(report, config, "the command", "tiny", "no licence")

    shards = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("shard-*")}
    again = fit(config, model, tokenizer, tmp_path, seen.append)
    assert again.by_kind == report.by_kind
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("shard-*")} == shards


def test_what_the_target_asks_is_answered_unless_it_is_held_out(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """A corpus asked for whole ends each prompt as the template does, and lacks what is excluded."""
    config = FitConfig(
        generate=GenerateConfig(batch_size=8, max_answer_tokens=6),
        train=settings(),
        answer_tokens=600,
        asked_share=1.0,
    )

    def prompts(work: Path, excluded: frozenset[tuple[int, ...]]) -> set[tuple[int, ...]]:
        answer_prompts(config, model, tokenizer, work, lambda _: None, user_prompts=(), excluded=excluded)
        rows = load_examples(work / "corpus", (3,), (3,))
        return {tuple(e.tokens[: e.prompt_length].tolist()) for e in rows if e.kind == "asked"}

    first = prompts(tmp_path / "first", frozenset())
    after = user_turn(tokenizer, "", None).after
    assert first
    assert all(list(prompt[-len(after) :]) == after for prompt in first)
    held_out = frozenset(list(first)[:1])
    assert prompts(tmp_path / "again", held_out) == first - held_out


def test_a_packed_corpus_takes_the_place_of_asking(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """A run on a packed corpus learns from exactly its answers and decodes none of its own."""
    from speculative.fitting.archive import pack_corpus

    config = FitConfig(
        generate=GenerateConfig(batch_size=8, max_answer_tokens=6, sampled_share=1.0),
        train=settings(),
        answer_tokens=60,
        held_out_per_kind=1,
    )
    first = fit(config, model, tokenizer, tmp_path / "a", lambda _: None)
    pack_corpus(tmp_path / "a" / "work" / "corpus", tmp_path / "corpus.npz")
    seen: list[Progress] = []
    unlimited = replace(config, answer_tokens=10**6)
    packed = tmp_path / "corpus.npz"
    again = fit(unlimited, model, tokenizer, tmp_path / "b", seen.append, packed_corpus=packed)
    assert (again.examples, again.answer_tokens) == (first.examples, first.answer_tokens)
    assert again.sampled_share == first.sampled_share == 1.0
    assert [p.remark for p in seen if p.phase == "corpus"][-1] == "shards"


def test_a_corpus_cut_short_holds_prompts_of_every_length() -> None:
    """Batches that are full come among those that are not, in an order the seed decides alone."""
    config = GenerateConfig(batch_size=8, sampled_share=0.0)
    rows = [Row([1] * 5, "common")] * 80 + [Row([1] * n, "rare") for n in range(6, 26)]
    work = batches(config, rows)
    assert sorted(kind for batch in work for kind in batch.kinds) == ["common"] * 80 + ["rare"] * 20
    assert max(max(map(len, batch.rows)) - min(map(len, batch.rows)) for batch in work) <= 8
    assert {kind for batch in work[: len(work) // 3] for kind in batch.kinds} == {"common", "rare"}
    assert batches(config, rows) == work


@pytest.mark.parametrize("kind", ["model", "sliding_model"])
def test_answers_are_the_targets_greedy_continuation(
    kind: str, tokenizer: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each greedy answer token is the argmax of the target at its place; the taps are those of one pass.

    Prompts of several lengths share a batch, so padding leaves no trace.
    """
    from speculative.fitting.corpus import held_out_prompts

    model = request.getfixturevalue(kind)
    config = GenerateConfig(batch_size=4, max_answer_tokens=5, sampled_share=0.0, tap_layers=(1, 3))
    work = batches(config, encoded(tokenizer, held_out_prompts(0, 1)))
    assert any(len(set(map(len, batch.rows))) > 1 for batch in work)
    generate(config, model, frozenset({1}), work, folder=tmp_path, progress=lambda _: True)
    found = load_examples(tmp_path, (1, 3), (1, 3))
    assert found
    with tapped(model, (1, 3)) as taps:
        for example in found[:6]:
            final, states = taps.run(mx.array(example.tokens[None, :-1]))
            best = np.array(mx.argmax(final @ output_head(model).T, axis=-1))[0, example.prompt_length - 1 :]
            assert best.tolist() == example.tokens[example.prompt_length :].tolist()
            stored = example.taps.reshape(len(example.tokens) - 1, -1).astype(np.float32)
            assert np.allclose(np.array(states[0]), stored, atol=1e-2)


def test_a_packed_corpus_comes_back_whole(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Token ids alone are enough to rebuild the corpus, hidden states included."""
    from speculative.fitting.archive import pack_corpus, unpack_corpus
    from speculative.fitting.corpus import held_out_prompts

    config = GenerateConfig(batch_size=4, max_answer_tokens=5, tap_layers=(1, 3))
    work = batches(config, encoded(tokenizer, held_out_prompts(0, 1)))[:3]
    generate(config, model, frozenset({1}), work, folder=tmp_path / "first", progress=lambda _: True)
    pack_corpus(tmp_path / "first", tmp_path / "corpus.npz")
    unpack_corpus(tmp_path / "corpus.npz", model, (1, 3), tmp_path / "again", lambda _done, _amount: None)
    first, again = (load_examples(tmp_path / name, (1, 3), (1, 3)) for name in ("first", "again"))
    assert [e[2:] for e in first] == [e[2:] for e in again]
    for a, b in zip(first, again, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert np.allclose(a.taps, b.taps, atol=1e-2)


def trainer(
    config: TrainConfig, model: Any, examples: list[Example], folder: Path
) -> tuple[GenericHead, Trainer]:
    mx.random.seed(7)
    geometry = head_config(model, config.num_layers, config.tap_layers, None, 4)
    head = initial_head(geometry, model, examples)
    output = Output.of(output_head(model), model.model.embed_tokens, np.arange(64))
    return head, Trainer(config, head, output, examples, folder)


def test_training_lowers_the_loss(model: Any, examples: list[Example], tmp_path: Path) -> None:
    """A head trained on a handful of examples fits them better at each depth."""
    config = settings(steps=30, learning_rate=3e-3, depth_shares=(1.0, 1.0))
    steps: list[Step] = []
    trainer(config, model, examples, tmp_path)[1].run(lambda s: not steps.append(s))
    assert all(last < first for first, last in zip(steps[0].losses, steps[-1].losses, strict=True))


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(
    model: Any, examples: list[Example], tmp_path: Path
) -> None:
    """Stopping after three steps and resuming gives the weights of an uninterrupted run."""
    config = settings(tap_layers=(1, 3))
    whole, run = trainer(config, model, examples, tmp_path / "whole")
    run.run(lambda _: True)
    _, run = trainer(config, model, examples, tmp_path / "parts")
    run.run(lambda s: s.step < 3)
    resumed, run = trainer(config, model, examples, tmp_path / "parts")
    assert run.step == 3
    run.run(lambda _: True)
    pairs = zip(tree_flatten(whole.parameters()), tree_flatten(resumed.parameters()), strict=True)
    assert all(mx.allclose(a, b, atol=1e-6).item() for (_, a), (_, b) in pairs)


def test_a_checkpoint_of_another_configuration_is_refused(
    model: Any, examples: list[Example], tmp_path: Path
) -> None:
    """Resuming with changed settings names the checkpoint instead of mixing two runs."""
    trainer(settings(), model, examples, tmp_path)[1].run(lambda _: True)
    with pytest.raises(ValueError, match="another configuration"):
        trainer(settings(learning_rate=1e-3), model, examples, tmp_path)


def test_the_draft_list_holds_control_tokens_then_frequent_then_low_ids(examples: list[Example]) -> None:
    """Always-included ids come first, then the most frequent answer tokens, and low ids fill what is left."""
    answer = [t for e in examples for t in e.tokens[e.prompt_length :].tolist()]
    most = max(set(answer), key=answer.count)
    assert {63, most} <= set(draft_vocabulary(examples, 5, 64, [63]).tolist())
    assert draft_vocabulary(examples, 64, 64, []).tolist() == list(range(64))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 0},
        {"draft_vocab_size": 0},
        {"depth_shares": ()},
        {"depth_shares": (1.0, 0.2, 0.5)},
        {"learning_rate": 0.0},
        {"warmup_steps": 6},
        {"batch_tokens": 1},
        {"dropout": 1.0},
    ],
)
def test_illegal_training_settings_are_refused(changes: dict[str, Any]) -> None:
    """A value out of range is refused by name."""
    with pytest.raises(ValueError, match=next(iter(changes))):
        settings(**changes)


def test_taps_the_corpus_lacks_are_refused() -> None:
    """A head cannot read layers that the corpus does not record."""
    with pytest.raises(ValueError, match="tap_layers"):
        FitConfig(train=settings(tap_layers=(2, 3)))


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_beyond_all_is_refused(share: float) -> None:
    """The share of made-up prompts is named with its range."""
    with pytest.raises(ValueError, match=r"asked_share .* legal is 0 to 1"):
        FitConfig(asked_share=share)


def test_taps_above_the_target_are_refused(model: Any) -> None:
    """A tap index above the target's layer count is refused and the target is left as it was."""
    with pytest.raises(ValueError, match="legal is 0 to 3"), tapped(model, (4,)):
        pass
