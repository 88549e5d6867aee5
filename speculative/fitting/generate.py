"""Writes the fitting corpus: the target's own answers with its hidden states, in shards on disk.

Owns batching prompts of similar length, decoding and resuming; knows neither the head nor how it is trained.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import (
    BatchKVCache,
    BatchRotatingKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)
from msgspec import Struct

from speculative.fitting.corpus import Prompt
from speculative.fitting.taps import Taps, output_head, tapped

# A logit this far below the best, in units of the temperature, has a probability under 1e-7.
_NEGLIGIBLE = 16.0
# Rows that have finished are dropped once they are this share of the batch.
_COMPACT_BELOW = 0.8
_ABANDON_BELOW = 0.2
# Batches that are sorted by length together: more make their prompts more alike.
_WINDOW = 8


class GenerateConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the corpus is decoded; `sampled_share` of the shards use `temperature`, the others are greedy."""

    batch_size: int = 64
    max_answer_tokens: int = 200
    sampled_share: float = 0.2
    temperature: float = 0.7
    tap_layers: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError naming the field, its value and the legal range."""
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; it must be at least 1")
        if self.max_answer_tokens < 2:
            raise ValueError(f"max_answer_tokens is {self.max_answer_tokens}; it must be at least 2")
        if not 0.0 <= self.sampled_share <= 1.0:
            raise ValueError(f"sampled_share is {self.sampled_share}; legal is 0 to 1")
        if self.temperature <= 0.0:
            raise ValueError(f"temperature is {self.temperature}; it must be above 0")


class Row(NamedTuple):
    """A prompt's token ids, up to where the answer begins, and its kind."""

    tokens: list[int]
    kind: str


class Batch(NamedTuple):
    """Prompts decoded together, of similar length: their token ids and the kind of each."""

    rows: list[list[int]]
    kinds: list[str]
    temperature: float


class Decoded(NamedTuple):
    """One batch that has its shard: batches finished, its answer tokens, whether it was decoded just now."""

    done: int
    answer_tokens: int
    fresh: bool


def encoded(tokenizer: Any, prompts: Iterable[Prompt]) -> Iterator[Row]:
    """Prompts in the words of the tokenizer's chat template."""
    for prompt in prompts:
        tokens = tokenizer.apply_chat_template(
            list(prompt.messages), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        yield Row(tokens, prompt.kind)


def batches(config: GenerateConfig, rows: Iterable[Row]) -> list[Batch]:
    """Prompts of similar length together, in a seeded order that does not depend on what is done."""
    ordered, rng, out = list(rows), random.Random(config.seed), []
    window = _WINDOW * config.batch_size
    for start in range(0, len(ordered), window):
        alike = sorted(ordered[start : start + window], key=lambda row: len(row.tokens))
        for first in range(0, len(alike), config.batch_size):
            group = alike[first : first + config.batch_size]
            temperature = config.temperature if rng.random() < config.sampled_share else 0.0
            out.append(Batch([row.tokens for row in group], [row.kind for row in group], temperature))
    # Lengths are those of certain kinds of prompt, and a corpus may be cut short.
    rng.shuffle(out)
    return out


def generate(
    config: GenerateConfig,
    model: Any,
    stop_tokens: frozenset[int],
    work: list[Batch],
    *,
    folder: Path,
    progress: Callable[[Decoded], bool],
) -> None:
    """Decode every batch that has no shard in `folder` yet, one file a batch, written atomically.

    `progress` is called after each batch; generation ends early when it returns False.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tapped(model, config.tap_layers) as taps:
        for index, batch in enumerate(work):
            path = folder / f"shard-{index:05d}.safetensors"
            fresh = not path.exists()
            if fresh:
                shard = _decode(config, model, taps, stop_tokens, batch, seed=config.seed * 100_003 + index)
                write_shard(path, shard, _notes(batch))
                mx.clear_cache()
            stored = read_shard(path)[0]
            tokens = int((stored["lengths"] - stored["prompts"]).sum())
            if not progress(Decoded(index + 1, tokens, fresh)):
                return


def read_shard(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    """A shard's arrays (those of `_decode`) and its notes: kinds, temperature."""
    return mx.load(str(path), return_metadata=True)  # pyright: ignore[reportReturnType]


def shards(folder: Path) -> Iterator[tuple[dict[str, mx.array], dict[str, str]]]:
    """Every shard of a folder, in the order of their numbers."""
    return (read_shard(path) for path in sorted(folder.glob("shard-*.safetensors")))


def write_shard(path: Path, shard: dict[str, mx.array], notes: dict[str, str]) -> None:
    """Write a shard so that no reader ever sees half of one."""
    scratch = path.with_name(f"partial-{path.name}")
    mx.save_safetensors(str(scratch), shard, notes)
    scratch.replace(path)


def _notes(batch: Batch) -> dict[str, str]:
    return {"kinds": ",".join(batch.kinds), "temperature": str(batch.temperature)}


def _decode(
    config: GenerateConfig, model: Any, taps: Taps, stop_tokens: frozenset[int], batch: Batch, *, seed: int
) -> dict[str, mx.array]:
    """Tokens int32 [B, L], prompts int32 [B], lengths int32 [B], taps float16 [B, L - 1, T * H].

    `prompts` are the lengths of the prompts alone, `lengths` those of prompt, answer and stop token. A row's
    positions at and after its length, and its taps from there on, are padding.
    """
    rng = np.random.default_rng(seed)
    head = output_head(model)
    rows = [list(row) for row in batch.rows]
    longest = max(len(row) for row in rows)
    padding = [longest - len(row) for row in rows]
    cache = _padded_cache(model, padding)
    hidden: list[list[np.ndarray]] = [[] for _ in rows]
    alive = list(range(len(rows)))
    active = set(alive)
    inputs = mx.array([[0] * pad + row for pad, row in zip(padding, rows, strict=True)])
    for answered in range(1, config.max_answer_tokens + 1):
        final, tapped_states = taps.run(inputs, cache)
        chosen = _choose(final[:, -1] @ head.T, batch.temperature, rng)
        states = np.array(tapped_states.astype(mx.float16))
        for slot, row in enumerate(alive):
            if row not in active:
                continue
            hidden[row].append(states[slot, padding[row] if answered == 1 else 0 :])
            rows[row].append(int(chosen[slot]))
            if rows[row][-1] in stop_tokens:
                active.discard(row)
        if len(active) <= _ABANDON_BELOW * len(rows):
            break
        if len(active) < _COMPACT_BELOW * len(alive):
            keep = [slot for slot, row in enumerate(alive) if row in active]
            for layer in cache:
                layer.filter(mx.array(keep))
            chosen, alive = chosen[keep], [alive[slot] for slot in keep]
        inputs = mx.array(chosen)[:, None]
    return _stacked(rows, hidden) | {"prompts": mx.array([len(row) for row in batch.rows])}


def _padded_cache(model: Any, padding: list[int]) -> list[Any]:
    """Caches for rows with that many tokens of padding before each; ValueError where mlx-lm has none."""
    caches: list[Any] = []
    for cache in make_prompt_cache(model):
        if type(cache) is KVCache:
            caches.append(BatchKVCache(padding))
        elif type(cache) is RotatingKVCache and not cache.keep:
            caches.append(BatchRotatingKVCache(cache.max_size, padding))
        else:
            raise ValueError(f"a corpus is decoded in batches, for which {type(cache).__name__} is not made")
    return caches


def _choose(logits: mx.array, temperature: float, rng: np.random.Generator) -> np.ndarray:
    if temperature == 0.0:
        return np.array(mx.argmax(logits, axis=-1))
    scaled = logits / temperature
    values = np.array(scaled)
    rows, columns = np.nonzero(np.array(scaled > scaled.max(axis=-1, keepdims=True) - _NEGLIGIBLE))
    # Gumbel-max over the few tokens whose probability is not negligible.
    noisy = values[rows, columns] + rng.gumbel(size=rows.size)
    chosen = np.zeros(len(values), dtype=np.int64)
    order = np.argsort(noisy)
    chosen[rows[order]] = columns[order]
    return chosen


def _stacked(rows: list[list[int]], hidden: list[list[np.ndarray]]) -> dict[str, mx.array]:
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    tokens = np.zeros((len(rows), longest), dtype=np.int32)
    states = np.zeros((len(rows), longest - 1, hidden[0][0].shape[-1]), dtype=np.float16)
    for i, row in enumerate(rows):
        tokens[i, : lengths[i]] = row
        states[i, : lengths[i] - 1] = np.concatenate(hidden[i])
    return {"tokens": mx.array(tokens), "lengths": mx.array(lengths), "taps": mx.array(states)}
