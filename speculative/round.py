"""One round for one sequence: propose, verify, pick, accept, rewind, as functions over values.

Knows a target, its caches and a drafter. Requests, stop conditions and sampling come in as two functions.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import mlx.core as mx
from msgspec import Struct

from speculative.accept import accept
from speculative.draft_noise import DraftNoise, DrawNoise
from speculative.drafter import Drafter
from speculative.rollback import OpenBlock
from speculative.target import Forward, Target

# How many of the tokens about to be emitted are wanted (1 to all); the caches end as if decode stopped there.
Limit = Callable[[Sequence[int]], int]


class Pick(Protocol):
    """Chooses the target's token after every row of a block."""

    def __call__(self, logits: mx.array, block: mx.array, position: int) -> mx.array:
        """Ids [K] from logits [K, V], without waiting for the device.

        `block` int32 [K] holds the tokens the rows were computed from: row i follows everything decided
        before the block and block[: i + 1]. Row i's token goes to `position` + i, however it is decoded.
        """
        ...


class DraftFailedError(Exception):
    """Drafting failed before anything was emitted; the target's caches are as before the round."""


class Round(Struct, frozen=True, kw_only=True):
    """What one round did.

    `emitted` tokens are final, `accepted` of them were drafts. Row i of `logits` [len(emitted), V] is what
    emitted token i was picked from. The times in milliseconds add up to the round: proposing and waiting for
    drafts, building and running the verify forward, and everything else. `is_copy`: the drafts were the
    text's own, not the drafter's. `depth` is how many drafts were asked for. `drafter_error` is set when the
    history could not be brought up to date: the emitted tokens stand, drafting cannot go on.
    """

    emitted: tuple[int, ...]
    accepted: int
    drafted: int
    depth: int = 0
    is_copy: bool = False
    logits: mx.array
    draft_ms: float
    verify_ms: float
    overhead_ms: float
    drafter_error: str | None = None

    @property
    def bonus(self) -> int:
        """The decided token that the target's caches do not hold yet."""
        return self.emitted[-1]

    @property
    def wall_ms(self) -> float:
        """Wall time of the whole round."""
        return self.draft_ms + self.verify_ms + self.overhead_ms


class Burst(Struct, frozen=True, kw_only=True):
    """One sequence between rounds: everything a round reads and advances.

    `caches` hold every token before `bonus`; `position` is the index of the token to be picked next.
    `copied` tokens, if there are any, are verified in the next round instead of the drafter's. `noise` is
    what a sampled request's tokens are picked with, None for a greedy one.
    """

    target: Target
    caches: list[Any]
    bonus: int
    position: int
    drafter: Drafter | None = None
    state: Any = None
    copied: tuple[int, ...] = ()
    noise: DrawNoise | None = None


def _all(emitted: Sequence[int]) -> int:
    return len(emitted)


def run_round(burst: Burst, depth: int, pick: Pick, limit: Limit = _all) -> Round:
    """Drafts up to `depth` tokens, verifies them in one forward, keeps what the target confirms.

    Depth 0 is a plain decode step that keeps the drafter's history complete. Raises DraftFailedError when
    drafting fails and ValueError for a negative depth or one above 0 without a drafter. A speculative round
    that raises leaves the target's caches as they were.
    """
    if depth < 0 or (depth > 0 and burst.drafter is None):
        raise ValueError(f"depth {depth}; legal is 0, or more with a drafter")
    return _plain(burst, pick) if depth == 0 else _speculative(burst, depth, pick, limit)


def _plain(burst: Burst, pick: Pick) -> Round:
    start = time.perf_counter()
    tokens = mx.array([burst.bonus], dtype=mx.int32)
    forward = burst.target.forward(tokens[None], burst.caches)
    picks = pick(forward.logits[0], tokens, burst.position)
    mx.async_eval(picks)
    emitted = tuple(_ids(picks))
    done = time.perf_counter()
    error = _extend(burst, emitted, forward.features)
    return Round(
        emitted=emitted,
        accepted=0,
        drafted=0,
        logits=forward.logits[0],
        draft_ms=0.0,
        verify_ms=_ms(start, done),
        overhead_ms=_ms(done, time.perf_counter()),
        drafter_error=error,
    )


def _speculative(burst: Burst, depth: int, pick: Pick, limit: Limit) -> Round:
    start = time.perf_counter()
    drafts = mx.array(burst.copied[:depth], dtype=mx.int32) if burst.copied else propose(burst, depth)
    mx.async_eval(drafts)
    proposed = time.perf_counter()
    block = burst.target.open_block(burst.caches, drafts.shape[0] + 1)
    try:
        tokens, forward = verify(burst, drafts, block)
        picks = pick(forward.logits[0], tokens, burst.position)
        # A CPU computes most of what is handed over before it returns.
        mx.async_eval(picks)
        launched = time.perf_counter()
        drafted = _drafted_ids(drafts)
        waited = time.perf_counter()
        accepted = accept(drafted, _ids(picks))
        verified = time.perf_counter()
        kept = limit(accepted.emitted)
        block.keep(kept)
    except BaseException:
        block.keep(0)
        raise
    emitted = accepted.emitted[:kept]
    error = _extend(burst, emitted, forward.features[:, :kept])
    return Round(
        emitted=emitted,
        accepted=min(accepted.count, kept),
        drafted=len(drafted),
        depth=depth,
        is_copy=bool(burst.copied),
        logits=forward.logits[0, :kept],
        draft_ms=_ms(start, proposed) + _ms(launched, waited),
        verify_ms=_ms(proposed, launched) + _ms(waited, verified),
        overhead_ms=_ms(verified, time.perf_counter()),
        drafter_error=error,
    )


def propose(burst: Burst, depth: int) -> mx.array:
    """The drafter's int32 ids, up to `depth`, unevaluated; DraftFailedError when it cannot draft."""
    drafter: Any = burst.drafter
    try:
        if burst.noise is None:
            return drafter.draft(burst.state, depth, burst.caches)
        noise = DraftNoise(burst.noise, burst.position, burst.target.num_logits)
        return drafter.draft(burst.state, depth, burst.caches, noise)
    except Exception as error:  # whatever is wrong with a drafter, the target can still decode
        raise DraftFailedError(str(error)) from error


def verify(burst: Burst, drafts: mx.array, block: OpenBlock) -> tuple[mx.array, Forward]:
    """One target forward over the bonus token and the drafts: the block's int32 [K] tokens, its results."""
    tokens = mx.concatenate([mx.array([burst.bonus], dtype=mx.int32), drafts.astype(mx.int32)])
    return tokens, burst.target.verify(tokens[None], block)


def _extend(burst: Burst, emitted: Sequence[int], features: mx.array) -> str | None:
    if burst.drafter is None:
        return None
    try:
        burst.drafter.extend(burst.state, emitted, features)
        if burst.copied:
            # No draft will ask for them soon, and a run of copies must not pile up unevaluated work.
            mx.async_eval([cache.state for cache in burst.state.caches])
    except Exception as error:  # the tokens are decided; losing them would cut the answer
        return str(error)
    return None


def _drafted_ids(drafts: mx.array) -> list[int]:
    try:
        return _ids(drafts)
    except Exception as error:  # drafts are evaluated here, so their failures surface here
        raise DraftFailedError(str(error)) from error


def _ids(array: mx.array) -> list[int]:
    return array.tolist()  # pyright: ignore[reportReturnType]


def _ms(start: float, end: float) -> float:
    return (end - start) * 1e3
