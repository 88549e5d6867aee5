"""Reuse of prompt caches between requests: mlx-lm's LRU trie, restricted to whole prefill chunks.

Only rows that a prefill with the same chunk boundaries would have produced are kept, so a hit and a miss give
the same bytes and therefore the same text. A drafter's history is kept beside the target's caches: without it
a hit would leave the drafter blind.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import LRUPromptCache, can_trim_prompt_cache
from msgspec import Struct

_MODEL_KEY = "model"
_MAX_ENTRIES = 64


class PromptState(Struct, frozen=True, kw_only=True):
    """Caches of the first `length` tokens of a prompt, a whole number of chunks.

    `history_caches` are the drafter's, None when it was not primed; `boundary_features[i]` [1, 1, F] is the
    feature of the last token of chunk i, after which the drafter waits for the next token.
    """

    caches: list[Any]
    history_caches: list[Any] | None
    boundary_features: tuple[mx.array, ...]
    length: int


class PromptCache:
    """Caches of prompt prefixes, at most `max_bytes`; 0 switches it off."""

    def __init__(self, max_bytes: int, chunk: int) -> None:
        """`chunk` is the prefill chunk in tokens."""
        self._chunk = chunk
        self._max_bytes = max_bytes
        self._entries = LRUPromptCache(max_size=_MAX_ENTRIES, max_bytes=max_bytes)

    def fetch(self, prompt: Sequence[int], with_history: bool) -> PromptState | None:
        """The longest known prefix of `prompt` that ends on a chunk boundary, or None.

        `with_history` accepts only prefixes the drafter was primed with. The last token of a prompt is never
        part of the prefix: it is left to the first decode step.
        """
        if not self._max_bytes or self._boundary(len(prompt) - 1) == 0:
            return None
        entry, rest = self._entries.fetch_nearest_cache(_MODEL_KEY, list(prompt[:-1]))
        if entry is None or (with_history and not entry[-1].has_history):
            return None
        known = len(prompt) - 1 - len(rest)
        length = self._boundary(known)
        if length == 0 or (length < known and not can_trim_prompt_cache(entry)):
            return None
        for cache in entry:
            cache.trim(known - length)
        return _unpacked(entry, length, self._chunk, with_history)

    def store(self, prompt: Sequence[int], state: PromptState) -> None:
        """Keep a prefix of `prompt`."""
        if self._max_bytes:
            self._entries.insert_cache(_MODEL_KEY, list(prompt[: state.length]), _packed(state))

    def _boundary(self, num_tokens: int) -> int:
        return num_tokens // self._chunk * self._chunk


class _Extras:
    """What an entry holds besides the target's caches, in the shape of one more cache."""

    def __init__(self, state: PromptState) -> None:
        self.num_target_caches = len(state.caches)
        self.has_history = state.history_caches is not None
        self.boundary_features = state.boundary_features
        self.nbytes = sum(feature.nbytes for feature in state.boundary_features)

    def is_trimmable(self) -> bool:
        """Boundary features are picked by boundary, so nothing has to be cut."""
        return True

    def trim(self, n: int) -> int:
        """Nothing to do."""
        return n


def _packed(state: PromptState) -> list[Any]:
    return [*state.caches, *(state.history_caches or ()), _Extras(state)]


def _unpacked(entry: list[Any], length: int, chunk: int, with_history: bool) -> PromptState:
    *caches, extras = entry
    return PromptState(
        caches=caches[: extras.num_target_caches],
        history_caches=caches[extras.num_target_caches :] if with_history else None,
        boundary_features=extras.boundary_features[: length // chunk] if with_history else (),
        length=length,
    )
