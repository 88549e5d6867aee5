"""The corpus of a run and its held-out answers: which prompts, in which folder, with what progress.

Owns the order of asking and answering; every part is resumable. Knows neither the head nor its training.
"""

import math
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from speculative.fitting.archive import unpack_corpus
from speculative.fitting.asking import finished, mixed, openings, user_turn
from speculative.fitting.config import FitConfig
from speculative.fitting.corpus import fitting_prompts, held_out_prompts
from speculative.fitting.generate import Batch, Decoded, Row, batches, encoded, generate, shards
from speculative.fitting.progress import Phase, Progress

# A guess on the low side: rather some prompts too many than too few.
_TOKENS_PER_ANSWER = 100
# One kind that holds requests of every kind.
_ASKED_PER_KIND = 4
_LONGEST_TURN = 64
_TURN_TEMPERATURE = 0.9

Show = Callable[[Progress], None]


def gather_answers(
    config: FitConfig,
    model: Any,
    tokenizer: Any,
    work: Path,
    progress: Show,
    *,
    user_prompts: tuple[str, ...],
    packed_corpus: Path | None,
) -> None:
    """Fills `work/held-out`, and `work/corpus` from `packed_corpus` or with answers to prompts."""
    held_out = answer_held_out(config, model, tokenizer, work, progress)
    if packed_corpus is None:
        answer_prompts(config, model, tokenizer, work, progress, user_prompts=user_prompts, excluded=held_out)
    else:
        layers = config.generate.tap_layers
        unpack_corpus(packed_corpus, model, layers, work / "corpus", _shards_unpacked(progress))


def answer_held_out(
    config: FitConfig, model: Any, tokenizer: Any, work: Path, progress: Show
) -> frozenset[tuple[int, ...]]:
    """Greedy answers to what is kept for the report, into `work/held-out`; returns the prompts' ids."""
    greedy = replace(config.generate, sampled_share=0.0)
    rows = list(encoded(tokenizer, held_out_prompts(config.seed, config.held_out_per_kind)))
    if config.asked_share:
        folder, amount = work / "asked-held-out", _ASKED_PER_KIND * config.held_out_per_kind
        # Another seed: other turns than those of the corpus.
        rows += _asked(config, model, tokenizer, folder, progress, amount=amount, seed=config.seed + 1)
    asked = batches(greedy, rows)
    generate(
        greedy,
        model,
        _stop(tokenizer),
        asked,
        folder=work / "held-out",
        progress=_all_wanted("held-out", asked, progress),
    )
    return frozenset(tuple(row.tokens) for row in rows)


def answer_prompts(
    config: FitConfig,
    model: Any,
    tokenizer: Any,
    work: Path,
    progress: Show,
    *,
    user_prompts: tuple[str, ...],
    excluded: frozenset[tuple[int, ...]],
) -> None:
    """Answers of `config.answer_tokens` in all, into `work/corpus`, to none of the prompts `excluded`."""
    rows = encoded(tokenizer, fitting_prompts(config.seed, user_prompts))
    amount = math.ceil(config.answer_tokens / _TOKENS_PER_ANSWER)
    if config.asked_share:
        turns = math.ceil(config.asked_share * amount)
        asked = _asked(config, model, tokenizer, work / "asked", progress, amount=turns, seed=config.seed)
        rows = mixed(rows, asked, config.asked_share, config.seed)
    rows = (row for row in rows if tuple(row.tokens) not in excluded)
    # What is needed comes first, in every mixture of kinds; the rest is for answers shorter than the guess.
    questions = [*batches(config.generate, islice(rows, amount)), *batches(config.generate, rows)]
    generate(
        config.generate,
        model,
        _stop(tokenizer),
        questions,
        folder=work / "corpus",
        progress=_tokens_wanted(config, progress),
    )


def _asked(
    config: FitConfig,
    model: Any,
    tokenizer: Any,
    folder: Path,
    progress: Show,
    *,
    amount: int,
    seed: int,
) -> list[Row]:
    """Distinct prompts the target makes up, at most `amount`: turns that do not end are dropped."""
    decoding = replace(
        config.generate,
        sampled_share=1.0,
        temperature=_TURN_TEMPERATURE,
        max_answer_tokens=_LONGEST_TURN,
        tap_layers=(),
        seed=seed,
    )
    after = user_turn(tokenizer, "", None).after
    turns = batches(decoding, islice(openings(tokenizer, seed), amount))
    generate(
        decoding,
        model,
        frozenset(after[:1]),
        turns,
        folder=folder,
        progress=_all_wanted("asking", turns, progress),
    )
    stored = (shard for shard, _ in shards(folder))
    distinct = dict.fromkeys(tuple(prompt) for prompt in finished(stored, after))
    return [Row(list(prompt), "asked") for prompt in distinct]


def _stop(tokenizer: Any) -> frozenset[int]:
    return frozenset({int(tokenizer.eos_token_id)})


def _shards_unpacked(progress: Show) -> Callable[[int, int], None]:
    started = time.perf_counter()

    def report(done: int, amount: int) -> None:
        left = (time.perf_counter() - started) / done * (amount - done)
        progress(Progress(phase="corpus", done=done, amount=amount, seconds_left=left, remark="shards"))

    return report


def _tokens_wanted(config: FitConfig, progress: Show) -> Callable[[Decoded], bool]:
    started, fresh, total = time.perf_counter(), 0, 0

    def report(batch: Decoded) -> bool:
        nonlocal fresh, total
        total += batch.answer_tokens
        fresh += batch.answer_tokens if batch.fresh else 0
        speed = fresh / (time.perf_counter() - started)
        left = max(config.answer_tokens - total, 0) / speed if speed else 0.0
        remark = f"{speed:.0f} tokens/s"
        progress(
            Progress(
                phase="corpus", done=total, amount=config.answer_tokens, seconds_left=left, remark=remark
            )
        )
        return total < config.answer_tokens

    return report


def _all_wanted(phase: Phase, work: list[Batch], progress: Show) -> Callable[[Decoded], bool]:
    started = time.perf_counter()

    def report(batch: Decoded) -> bool:
        left = (time.perf_counter() - started) / batch.done * (len(work) - batch.done)
        progress(Progress(phase=phase, done=batch.done, amount=len(work), seconds_left=left))
        return True

    return report
