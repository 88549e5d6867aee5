"""Reads the corpus back: sequences in memory, batches of similar length, the draft vocabulary.

Owns layout and counting; knows neither the head nor the loss.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from speculative.fitting.generate import shards


class Example(NamedTuple):
    """One answered prompt: int32 tokens [L], float16 taps [L - 1, T, H] of the tokens before the last one."""

    tokens: np.ndarray
    taps: np.ndarray
    prompt_length: int
    kind: str
    greedy: bool


class Packed(NamedTuple):
    """Examples padded to one length; slot j pairs hidden j with token j + 1 and predicts token j + 2.

    tokens int32 [B, N + 2]; hidden float32 [B, N, t * H], the taps the head reads; final float32 [B, N, H],
    the hidden after the final norm one position later (the teacher's); counted bool [B, N], slots whose
    predicted token is part of the answer.
    """

    tokens: mx.array
    hidden: mx.array
    final: mx.array
    counted: mx.array


def thinned(packed: Packed, dropout: float, key: mx.array) -> Packed:
    """`packed` without that share of what the head reads, the rest enlarged to the same mean.

    Dropout (Srivastava et al. 2014); `key` says which elements.
    """
    if dropout == 0.0:
        return packed
    kept = mx.random.bernoulli(1 - dropout, packed.hidden.shape, key=key)
    return packed._replace(hidden=mx.where(kept, packed.hidden / (1 - dropout), 0.0))


def load_examples(folder: Path, recorded: Sequence[int], kept: Sequence[int]) -> list[Example]:
    """Every example of a corpus folder, with only the tap layers in `kept` of those `recorded`."""
    columns = [list(recorded).index(layer) for layer in kept]
    out: list[Example] = []
    for shard, meta in shards(folder):
        tokens, prompts, lengths, taps = (
            np.array(shard[name]) for name in ("tokens", "prompts", "lengths", "taps")
        )
        taps = taps.reshape(*taps.shape[:2], len(recorded), -1)[:, :, columns]
        greedy = float(meta["temperature"]) == 0.0
        for row, kind in enumerate(meta["kinds"].split(",")):
            prompt_length, length = int(prompts[row]), int(lengths[row])
            if length >= prompt_length + 2:
                kept_taps = taps[row, : length - 1].copy()
                out.append(Example(tokens[row, :length].copy(), kept_taps, prompt_length, kind, greedy))
    return out


def pack(examples: Sequence[Example], read: slice) -> Packed:
    """Pad examples to the longest; `read` selects the taps the head reads, the last tap is the teacher's."""
    longest = max(len(e.tokens) for e in examples)
    slots, size = longest - 2, examples[0].taps.shape[-1]
    width = len(range(examples[0].taps.shape[1])[read]) * size
    tokens = np.zeros((len(examples), longest), dtype=np.int32)
    hidden = np.zeros((len(examples), slots, width), dtype=np.float32)
    final = np.zeros((len(examples), slots, size), dtype=np.float32)
    counted = np.zeros((len(examples), slots), dtype=bool)
    for row, example in enumerate(examples):
        length = len(example.tokens)
        tokens[row, :length] = example.tokens
        hidden[row, : length - 2] = example.taps[:-1, read].reshape(length - 2, width)
        final[row, : length - 2] = example.taps[1:, -1]
        counted[row, example.prompt_length - 1 : length - 2] = True
    return Packed(mx.array(tokens), mx.array(hidden), mx.array(final), mx.array(counted))


def batches(examples: Sequence[Example], batch_tokens: int, rng: random.Random) -> Iterator[list[Example]]:
    """One epoch of batches of about `batch_tokens` padded slots: similar lengths together, random order."""
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].tokens) + rng.uniform(-8, 8))
    groups: list[list[Example]] = [[]]
    for i in order:
        if groups[-1] and len(examples[i].tokens) * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(examples[i])
    rng.shuffle(groups)
    yield from groups


def draft_vocabulary(
    examples: Sequence[Example], size: int, vocab_size: int, always: Sequence[int]
) -> np.ndarray:
    """`size` target ids, ascending: `always`, then the ids most frequent in answers, then the lowest ids.

    The lowest ids of a byte-pair vocabulary are its earliest merges, so its most frequent tokens in general.
    """
    counts: Counter[int] = Counter()
    for example in examples:
        counts.update(example.tokens[example.prompt_length :].tolist())
    ordered = [*always, *(i for i, _ in counts.most_common()), *range(vocab_size)]
    return np.array(sorted(list(dict.fromkeys(ordered))[: min(size, vocab_size)]), dtype=np.int32)
