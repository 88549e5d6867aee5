"""The whole fitting run, one function: corpus, head, training, report, files.

Owns the order and the folders; every step is resumable, so a run that was stopped goes on where it was.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from msgspec.structs import replace

from speculative.fitting.acceptance import Acceptance, measure
from speculative.fitting.answers import gather_answers
from speculative.fitting.config import FitConfig
from speculative.fitting.data import Example, draft_vocabulary, load_examples
from speculative.fitting.initial import head_config, initial_head
from speculative.fitting.progress import Progress
from speculative.fitting.report import CurvePoint, FitReport, curve_point
from speculative.fitting.taps import output_head
from speculative.fitting.train import Output, Step, Trainer
from speculative.generic_head import GenericHead, GenericHeadConfig, HeadFiles, save_generic_head

# A regression of a few thousand unknowns needs tens of thousands of slots and no more.
_EXAMPLES_FOR_START = 128
_ALWAYS_TEXT = "\n0123456789.,:;!?-*#()[]{}\"'`"


def fit(
    config: FitConfig,
    model: Any,
    tokenizer: Any,
    folder: Path,
    progress: Callable[[Progress], None],
    *,
    user_prompts: tuple[str, ...] = (),
    packed_corpus: Path | None = None,
) -> FitReport:
    """Fit a generic head to a loaded llama-type target and write it into `folder`.

    `tokenizer` has a chat template and `eos_token_id` (Hugging Face's, or mlx-lm's wrapper). `user_prompts`
    are asked among the first; with `packed_corpus`, a file of `archive.pack_corpus`, nothing is
    asked and that corpus is used. `folder/work` keeps corpus and checkpoints; a second call with the same
    configuration goes on from them.

    Raises ValueError when the configuration does not fit the target.
    """
    layers = model.args.num_hidden_layers
    recorded = tuple(sorted({*config.generate.tap_layers, layers}))
    kept = tuple(sorted({*config.train.tap_layers, layers}))
    if config.train.tap_layers and config.train.tap_layers != kept:
        raise ValueError(f"train.tap_layers is {config.train.tap_layers}; it must ascend and end in {layers}")
    work = folder / "work"
    recording = replace(config, generate=replace(config.generate, tap_layers=recorded))
    gather_answers(
        recording, model, tokenizer, work, progress, user_prompts=user_prompts, packed_corpus=packed_corpus
    )
    examples = load_examples(work / "corpus", recorded, kept)
    held_out = load_examples(work / "held-out", recorded, kept)
    vocab = draft_vocabulary(
        examples,
        config.train.draft_vocab_size or model.args.vocab_size,
        model.args.vocab_size,
        _always(tokenizer),
    )
    output = Output.of(output_head(model), model.model.embed_tokens, vocab)
    geometry = head_config(
        model, config.train.num_layers, config.train.tap_layers, vocab.size, config.block_size
    )
    progress(Progress(phase="start", done=0, amount=1, seconds_left=0.0))
    head = initial_head(geometry, model, examples[:: max(len(examples) // _EXAMPLES_FOR_START, 1)])
    depths = config.block_size - 1

    def acceptance() -> dict[str, Acceptance]:
        return measure(head, output, vocab, held_out, tap_layers=config.train.tap_layers, depths=depths)

    curve = _train(config, Trainer(config.train, head, output, examples, work), acceptance, progress)
    by_kind = acceptance()
    _save(folder, head, geometry, vocab)
    progress(Progress(phase="report", done=1, amount=1, seconds_left=0.0))
    points = (*curve, curve_point(config.train.steps, by_kind))
    return _report(examples, held_out, vocab, by_kind, points)


def _report(
    examples: list[Example],
    held_out: list[Example],
    vocab: np.ndarray,
    by_kind: dict[str, Acceptance],
    curve: tuple[CurvePoint, ...],
) -> FitReport:
    return FitReport(
        answer_tokens=sum(_answer(e).size for e in examples),
        examples=len(examples),
        sampled_share=sum(not e.greedy for e in examples) / len(examples),
        held_out_examples=len(held_out),
        coverage=float(np.isin(np.concatenate([_answer(e) for e in held_out]), vocab).mean()),
        by_kind=by_kind,
        curve=curve,
    )


def _train(
    config: FitConfig,
    trainer: Trainer,
    acceptance: Callable[[], dict[str, Acceptance]],
    progress: Callable[[Progress], None],
) -> list[CurvePoint]:
    curve = [curve_point(trainer.step, acceptance())]

    def report(step: Step) -> bool:
        if step.step % config.train.evaluate_every == 0 and step.step < step.steps:
            curve.append(curve_point(step.step, acceptance()))
        losses = "/".join(f"{loss:.3f}" for loss in step.losses)
        accepted = "/".join(f"{share:.2f}" for share in curve[-1].conditional)
        remark = f"loss {losses}, accepted {accepted}, {step.slots_per_second:.0f} slots/s"
        progress(
            Progress(
                phase="train",
                done=step.step,
                amount=step.steps,
                seconds_left=step.seconds_left,
                remark=remark,
            )
        )
        return True

    if trainer.step < config.train.steps:
        trainer.run(report)
    return curve


def _save(folder: Path, head: GenericHead, geometry: GenericHeadConfig, vocab: np.ndarray) -> None:
    stored = GenericHead(geometry)
    trained: list[tuple[str, mx.array]] = tree_flatten(head.parameters())  # pyright: ignore[reportAssignmentType]
    stored.update(tree_unflatten([(k, v.astype(mx.float16)) for k, v in trained]))
    save_generic_head(folder, HeadFiles(stored, geometry, mx.array(vocab)))


def _always(tokenizer: Any) -> list[int]:
    """Ids every draft list holds: the control tokens, and what lists, code and numbers cannot do without."""
    text: list[int] = tokenizer.encode(_ALWAYS_TEXT, add_special_tokens=False)
    return [int(tokenizer.eos_token_id), *tokenizer.all_special_ids, *text]


def _answer(example: Example) -> np.ndarray:
    return example.tokens[example.prompt_length :]
