"""Reuse of prompt caches between requests: mlx-lm's LRU trie, restricted to whole prefill chunks.

Only rows that a prefill of the same chunk boundaries would have produced are kept, so a hit and a miss give
the same bytes and therefore the same text. Knows neither requests nor lanes.
"""

from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import KVCache, LRUPromptCache

from engine.batch_lane import KVState

_MODEL_KEY = "model"
_MAX_ENTRIES = 64


class PromptCache:
    """Caches of prompt prefixes, at most `max_bytes`; 0 switches it off."""

    def __init__(self, max_bytes: int, chunk: int) -> None:
        """`chunk` is the prefill chunk in tokens."""
        self._chunk = chunk
        self._max_bytes = max_bytes
        self._entries = LRUPromptCache(max_size=_MAX_ENTRIES, max_bytes=max_bytes)

    def wants(self, prompt: Sequence[int]) -> bool:
        """Whether a finished request with this prompt leaves something worth keeping."""
        return self._max_bytes > 0 and self._boundary(len(prompt)) > 0

    def fetch(self, prompt: Sequence[int]) -> KVState | None:
        """Caches for the longest known prefix of `prompt` that ends on a chunk boundary, or None."""
        if not self.wants(prompt):
            return None
        caches, rest = self._entries.fetch_nearest_cache(_MODEL_KEY, list(prompt))
        if caches is None:
            return None
        known = len(prompt) - len(rest)
        boundary = min(self._boundary(known + 1), self._boundary(len(prompt)))
        if boundary == 0:
            return None
        _trim(caches, known - boundary)
        return KVState(caches, list(prompt[:boundary]))

    def store(self, prompt: Sequence[int], state: KVState) -> None:
        """Keep the whole-chunk prefix of a finished request's prompt.

        Caches that cannot be cut back exactly (rotating past the window, recurrent) are not kept.
        """
        boundary = self._boundary(len(prompt))
        if boundary == 0 or not all(type(cache) is KVCache for cache in state.caches):
            return
        _trim(state.caches, len(state.token_ids) - boundary)
        self._entries.insert_cache(_MODEL_KEY, list(prompt[:boundary]), state.caches)

    def _boundary(self, num_tokens: int) -> int:
        # The last prompt token is always fed by the first decode step, never by a prefill chunk.
        return max(0, num_tokens - 1) // self._chunk * self._chunk


def _trim(caches: list[Any], num_tokens: int) -> None:
    for cache in caches:
        cache.trim(num_tokens)
