"""Which inputs the exactness probe compares: token walks, context lengths, cache edges. Pure values."""

from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache
from msgspec import Struct

SHORT_CONTEXT = 8
# An odd length off every multiple of a vector width.
ODD_CONTEXT = 21
LONG_CONTEXT = 1056


class Draw(Struct, frozen=True):
    """One comparison input: a prompt, a block that follows it, and the lengths to cut the prompt to."""

    prompt: tuple[int, ...]
    block: tuple[int, ...]
    lengths: tuple[int, ...]


def windows(caches: Sequence[Any]) -> set[int]:
    """The window sizes among the caches of a sequence, in tokens."""
    found: set[int] = set()
    for cache in caches:
        if isinstance(cache, CacheList):
            found |= windows(cache.caches)
        elif isinstance(cache, RotatingKVCache):
            found.add(cache.max_size)
    return found


def edge_lengths(caches: Sequence[Any], block_size: int, context_length: int) -> tuple[int, ...]:
    """Context lengths after which a block of `block_size` rows meets something, ascending.

    A short context, one straddling the KV allocation step, for every window one straddling it and one past
    it, and a long one; all leave room for the block within `context_length`.
    """
    before = (block_size + 1) // 2
    lengths = {SHORT_CONTEXT, KVCache.step - before, LONG_CONTEXT}
    for window in windows(caches):
        lengths |= {max(1, window - before), window + 33}
    return tuple(sorted(n for n in lengths if n + block_size <= context_length))


def walk(length: int, stride: int, start: int, vocab_size: int) -> tuple[int, ...]:
    """An arithmetic walk through the vocabulary: reproducible tokens without a tokenizer."""
    return tuple((i * stride + start) % vocab_size for i in range(length))


def draws(count: int, lengths: tuple[int, ...], block_size: int, vocab_size: int) -> tuple[Draw, ...]:
    """`count` differing inputs: the first visits every length, the others short contexts only."""
    result: list[Draw] = []
    for index in range(count):
        salt = index * 977 + 1
        own = lengths if index == 0 else tuple(n for n in (SHORT_CONTEXT, ODD_CONTEXT) if n <= max(lengths))
        result.append(
            Draw(
                prompt=walk(max(own), 7, 1 + salt, vocab_size),
                block=walk(block_size, 13, 3 + salt, vocab_size),
                lengths=own,
            )
        )
    return tuple(result)
