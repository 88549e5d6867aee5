"""The clock of the round benchmark: one context, a few turns. Imports MLX, so the BLAS must be in place."""

import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from msgspec.structs import replace

from bench.round_cost import Point, Timing
from engine.drafting import Speculation
from messages.events import DraftKind
from speculative.draft_noise import DraftNoise
from speculative.rollback import clone_caches
from speculative.round import Burst, run_round
from speculative.target import Target

_CHUNK = 256


class FreeDrafter:
    """Proposes the same tokens at no cost and keeps no history."""

    kind: DraftKind = "mtp"

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._drafts = mx.arange(1, block_size, dtype=mx.int32)
        mx.eval(self._drafts)

    def why_incompatible(self, target: Target) -> str | None:
        """Fits everything."""
        return None

    def bind(self, target: Target) -> None:
        """Shares nothing."""

    def make_state(self) -> None:
        """No history."""

    def prime(self, state: None, tokens: Sequence[int], features: mx.array) -> None:
        """Reads nothing."""

    def extend(self, state: None, tokens: Sequence[int], features: mx.array) -> None:
        """Reads nothing."""

    def draft(
        self, state: None, depth: int, target_caches: Sequence[Any], noise: DraftNoise | None = None
    ) -> mx.array:
        """The same ids, whatever the text."""
        return self._drafts[:depth]


def measure_point(speculation: Speculation, context: int, turns: int) -> Point:
    """The three ways in turn after `context` tokens.

    The first turn is not counted: caches that share buffers or are full copy themselves once.
    """
    target, drafter, rows = speculation.target, speculation.drafter, speculation.block_size
    caches, state = target.make_cache(), drafter.make_state()
    features = _prefill(speculation, caches, state, context)
    drafter.extend(state, [1], features)
    burst = Burst(target=target, caches=caches, bonus=1, position=1, drafter=drafter, state=state)
    free = replace(burst, caches=clone_caches(caches), drafter=FreeDrafter(rows), state=None)
    timings: list[Timing] = []
    extra: list[int] = []
    for _ in range(turns + 1):
        verify_ms = _verify(target, caches, rows)
        free_ms, free, _ = _round(free, rows)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        round_ms, burst, draft_ms = _round(burst, rows)
        extra.append(mx.get_peak_memory() - before)
        timings.append(Timing(verify_ms, free_ms, round_ms, draft_ms))
    held = sum(cache.nbytes for cache in caches)
    return Point(context=context, timings=tuple(timings[1:]), cache_bytes=held, extra_bytes=max(extra[1:]))


def _prefill(speculation: Speculation, caches: list[Any], state: Any, context: int) -> mx.array:
    """Run a walk through the vocabulary; the features [1, 1, F] after which no token is known."""
    target = speculation.target
    tokens = [(7 * i + 1) % target.vocab_size for i in range(context)]
    features = mx.zeros((1, 1, 0))
    for begin in range(0, context, _CHUNK):
        chunk = tokens[begin : begin + _CHUNK]
        features = target.forward(mx.array([chunk]), caches).features
        speculation.drafter.prime(state, chunk, features)
        mx.eval(features, [cache.state for cache in (*caches, *state.caches)])
    # A copy: a view would keep the whole chunk.
    return mx.array(features[:, -1:])


def _verify(target: Target, caches: list[Any], rows: int) -> float:
    """Milliseconds of the forward that a round verifies with; the caches stay as they were."""
    tokens = mx.arange(1, rows + 1, dtype=mx.int32)
    start = time.perf_counter()
    block = target.open_block(caches, rows)
    mx.eval(target.verify(tokens[None], block).logits)
    elapsed = time.perf_counter() - start
    block.keep(0)
    return elapsed * 1e3


def _round(burst: Burst, rows: int) -> tuple[float, Burst, float]:
    """Milliseconds of a round that keeps one token, the burst after it, and what drafting took."""
    start = time.perf_counter()
    done = run_round(burst, rows - 1, _greedy, lambda emitted: 1)
    elapsed = time.perf_counter() - start
    return elapsed * 1e3, replace(burst, bonus=done.bonus, position=burst.position + 1), done.draft_ms


def _greedy(logits: mx.array, block: mx.array, position: int) -> mx.array:
    return mx.argmax(logits, axis=-1)
