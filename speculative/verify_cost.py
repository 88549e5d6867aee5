"""What verifying costs on this machine: times of forwards by number of rows. Knows no exactness."""

import time
from collections.abc import Generator, Sequence
from typing import Any

import mlx.core as mx
from msgspec import Struct

from speculative.rollback import clone_caches
from speculative.target import Target


class VerifyCost(Struct, frozen=True, kw_only=True):
    """Milliseconds of one ordinary decode step (`plain_ms`, default selection) and of forwards by row count.

    `rows_ms[i]` belongs to i + 1 rows under the selection in force: the first is decode as the server then
    does it. They reach beyond a full block, to show what a larger one would cost. Empty when nothing was
    measured.
    """

    plain_ms: float
    rows_ms: tuple[float, ...]


def measure_rows(
    target: Target, caches: Sequence[Any], tokens: Sequence[int], repeats: int
) -> Generator[None, None, float]:
    """Milliseconds of one forward of `tokens` after `caches`, which stay as they are.

    The quickest of `repeats`: whatever else the machine does can only make a forward slower. One more
    forward comes first, so that nothing is compiled or paged in while the clock runs.
    """
    times: list[float] = []
    for _ in range(repeats + 1):
        times.append(_timed(target, clone_caches(caches), tokens))
        yield
    return min(times[1:])


def _timed(target: Target, caches: list[Any], tokens: Sequence[int]) -> float:
    # The first write to shared buffers copies them; that is no part of a round.
    mx.eval(target.forward(mx.array([tokens[:1]]), caches).logits)
    start = time.perf_counter()
    if len(tokens) == 1:
        mx.eval(target.forward(mx.array([tokens]), caches).logits)
    else:
        mx.eval(target.verify(mx.array([tokens]), target.open_block(caches, len(tokens))).logits)
    return (time.perf_counter() - start) * 1e3
