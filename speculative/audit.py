"""The live audit of one round: are its tokens, logits and caches those of single-token steps?

Owns the comparison. Which rounds are audited, and what follows from a difference, is decided elsewhere.
"""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
from msgspec import Struct

from speculative.probe import block_difference, rewind_difference
from speculative.rollback import clone_caches
from speculative.round import Pick, Round
from speculative.target import Target


class Mismatch(Struct, frozen=True):
    """How a round differed from single-token steps; `changes_token`: one of them picked another token."""

    reason: str
    changes_token: bool


class Start(Struct, frozen=True):
    """A sequence as a round finds it; `caches` are copies, used up by the audit."""

    caches: list[Any]
    bonus: int
    position: int


def start_of(caches: Sequence[Any], bonus: int, position: int) -> Start:
    """What an audit of the round about to run needs; `caches` stay untouched."""
    return Start(clone_caches(caches), bonus, position)


def audit_round(
    target: Target, start: Start, done: Round, after: Sequence[Any], pick: Pick
) -> Mismatch | None:
    """Decodes the round's tokens one by one under the selection in force; None when nothing differs.

    `after` are the sequence's caches after the round, which stay untouched: one step from them and one from
    the chain's tell whether the rewind was exact. Costs one forward per emitted token and two more.
    """
    picks: list[int] = []
    rows: list[mx.array] = []
    for index, fed in enumerate((start.bonus, *done.emitted[:-1])):
        row = _step(target, fed, start.caches)
        picks.append(cast(int, pick(row, mx.array([fed], dtype=mx.int32), start.position + index).item()))
        rows.append(row)
    changed = [i for i, (mine, theirs) in enumerate(zip(picks, done.emitted, strict=True)) if mine != theirs]
    reason = block_difference(done.logits, mx.concatenate(rows)) or rewind_difference(
        _step(target, done.bonus, clone_caches(after)), _step(target, done.bonus, start.caches)
    )
    if changed and not reason:
        reason = f"verify block position {changed[0]} picked another token from the same logit bytes"
    return Mismatch(f"a live audit found that {reason}", bool(changed)) if reason else None


def _step(target: Target, token: int, caches: list[Any]) -> mx.array:
    """Logits [1, V] of a plain decode step."""
    logits = target.forward(mx.array([[token]], dtype=mx.int32), caches).logits[0]
    mx.eval(logits)
    return logits
