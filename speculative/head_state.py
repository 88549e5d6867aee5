"""The history of a drafter with KV caches of its own: exact pairs, chained rows that are taken back.

Owns how pairs become cache slots. Knows no network and no target.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx


class HeadState:
    """Pairs in KV caches, slot i holding pair i; `last` is the output row of the newest pair, if any."""

    def __init__(self, caches: list[Any]) -> None:
        self.caches = caches
        self.length = 0
        self.waiting: mx.array | None = None
        self.last: mx.array | None = None

    def rewind(self, length: int) -> None:
        """Drops every slot from `length` on; raises ValueError when there are fewer pairs."""
        if not 0 <= length <= self.length:
            raise ValueError(f"rewinding the history to {length} pairs; legal is 0 to {self.length}")
        self.length = length
        self.last = None
        self.drop_chained()

    def drop_chained(self) -> None:
        """Drops the slots that drafting wrote beyond the confirmed pairs."""
        for cache in self.caches:
            cache.trim(cache.offset - self.length)


def prompt_pairs(
    waiting: mx.array | None, tokens: Sequence[int], features: mx.array
) -> tuple[tuple[mx.array, mx.array] | None, mx.array]:
    """The pairs a prompt chunk completes, as (ids [1, L], features [1, L, F]) or None, and what waits now.

    Joins the waiting feature with the chunk's first token; the chunk's last feature waits for the next.
    """
    if waiting is None:
        ids, rows = tokens[1:], features[:, :-1]
    else:
        ids, rows = tokens, mx.concatenate([waiting, features[:, :-1]], axis=1)
    return (mx.array([list(ids)]), rows) if ids else None, features[:, -1:]
