"""What verifying costs on this machine: times of forwards by number of rows. Knows no exactness."""

import time
from collections.abc import Generator, Sequence
from typing import Any

import mlx.core as mx
from msgspec import Struct

from speculative.rollback import clone_caches
from speculative.selection import DEFAULT, Selection, selected
from speculative.target import Target

# Row counts that are only to be looked at, not served, are timed less often.
_GLANCES = 2


class VerifyCost(Struct, frozen=True, kw_only=True):
    """Milliseconds of one ordinary decode step (`plain_ms`, default selection) and of forwards by row count.

    `rows_ms[i]` belongs to i + 1 rows under the selection in force: the first is decode as the server then
    does it. They reach beyond a full block, to show what a larger one would cost. Empty when nothing was
    measured.
    """

    plain_ms: float
    rows_ms: tuple[float, ...]


class CostPlan(Struct, frozen=True, kw_only=True):
    """Forwards of 1 to `rows` rows, in `turns` turns; more rows than `served` are in the first turns only."""

    rows: int
    served: int
    turns: int


def measure_cost(
    target: Target, selection: Selection, caches: Sequence[Any], tokens: Sequence[int], plan: CostPlan
) -> Generator[None, None, VerifyCost]:
    """Times forwards of the first of `tokens` after `caches`, which stay as they are, one forward a piece.

    The quickest of all turns: whatever else the machine does can only make a forward slower. All row counts
    have their turn before any has its next, because the pace of a machine drifts and the quotients are what
    counts. One more turn comes first, so that nothing is compiled or paged in while the clock runs.
    """
    plain: list[float] = []
    by_rows: list[list[float]] = [[] for _ in range(plan.rows)]
    for turn in range(plan.turns + 1):
        plain.append(_timed(target, DEFAULT, caches, tokens[:1]))
        yield
        for rows, times in enumerate(by_rows[: plan.rows if turn <= _GLANCES else plan.served], 1):
            times.append(_timed(target, selection, caches, tokens[:rows]))
            yield
    return VerifyCost(plain_ms=min(plain[1:]), rows_ms=tuple(min(times[1:]) for times in by_rows))


def _timed(target: Target, selection: Selection, caches: Sequence[Any], tokens: Sequence[int]) -> float:
    own = clone_caches(caches)
    with selected(target, selection):
        # The first write to shared buffers copies them; that is no part of a round.
        mx.eval(target.forward(mx.array([tokens[:1]]), own).logits)
        start = time.perf_counter()
        if len(tokens) == 1:
            mx.eval(target.forward(mx.array([tokens]), own).logits)
        else:
            mx.eval(target.verify(mx.array([tokens]), target.open_block(own, len(tokens))).logits)
        return (time.perf_counter() - start) * 1e3
