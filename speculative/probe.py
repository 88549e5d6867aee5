"""The exactness probe: does a K-row verify give the bytes of K one-row decodes, and under which selection?

Owns comparing, trying selections in order and measuring what verifying costs. Knows no requests; what to do
about a failure is decided elsewhere.
"""

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import mlx.core as mx
from msgspec import Struct

from speculative.probe_plan import Draw, draws, edge_lengths
from speculative.rollback import clone_caches, why_not_rewindable
from speculative.selection import DEFAULT, Selection, candidates, selected, why_unavailable
from speculative.target import Target
from speculative.verify_cost import VerifyCost, measure_rows

# Readies a sequence's caches for the kind of decode the server does without speculation.
PlainCaches = Callable[[list[Any]], list[Any]]


class ProbeSettings(Struct, frozen=True, kw_only=True):
    """What to compare: `context_length` bounds contexts, in tokens; `repeats` are timings per row count.

    `pinned_by` names what forbids to try other kernels than the default ones, if anything does.
    """

    block_size: int
    context_length: int
    draws: int = 3
    prefill_chunk: int = 256
    repeats: int = 5
    pinned_by: str = ""


class Attempt(Struct, frozen=True, kw_only=True):
    """One selection and why it is not exact; an empty reason says that it is.

    `ran` is False when there was nothing to compare.
    """

    selection: Selection
    reason: str = ""
    ran: bool = True


class ProbeResult(Struct, frozen=True, kw_only=True):
    """The probe's answer, ready to be stored.

    `selection` is the first exact one, or the default selection when none is; then `detail` says how that one
    differed and what else was tried. `verify_cost` was measured under `selection`, except for `plain_ms`.
    """

    exact: bool
    selection: Selection
    detail: str
    attempts: tuple[Attempt, ...]
    verify_cost: VerifyCost
    duration_ms: float


class _Start(Struct, frozen=True):
    """The caches after a context, and the block that follows."""

    caches: list[Any]
    block: tuple[int, ...]


def run_probe(target: Target, settings: ProbeSettings, plain_caches: PlainCaches = list) -> ProbeResult:
    """Runs the whole probe; see `probe_steps`."""
    steps = probe_steps(target, settings, plain_caches)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def probe_steps(
    target: Target, settings: ProbeSettings, plain_caches: PlainCaches = list
) -> Generator[None, None, ProbeResult]:
    """The probe in pieces of about one forward each; closing the generator restores the model's selection.

    The chain arm decodes with `plain_caches` of the shared prefill, so that it is what the server does
    without speculation. No selection is left in force at the end.
    """
    begin = time.perf_counter()
    attempts: list[Attempt] = []
    starts: list[_Start] = []
    exact = None
    if reason := _why_not_runnable(target, settings):
        attempts.append(_not_run(DEFAULT, reason))
    else:
        starts = yield from _prefill(target, settings)
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        choice = candidates(settings.block_size, on_cpu and target.attends_in_tiles)
        for selection in (DEFAULT,) if settings.pinned_by else choice:
            attempt = yield from _attempt(target, selection, starts, plain_caches)
            attempts.append(attempt)
            if not attempt.reason:
                exact = selection
                break
    measured = exact or (DEFAULT if attempts[0].ran else None)
    cost = VerifyCost(plain_ms=0.0, rows_ms=())
    if measured:
        cost = yield from _cost(target, measured, starts[0], settings)
    return ProbeResult(
        exact=exact is not None,
        selection=exact or DEFAULT,
        detail="" if exact else _detail(attempts, settings.pinned_by),
        attempts=tuple(attempts),
        verify_cost=cost,
        duration_ms=(time.perf_counter() - begin) * 1e3,
    )


def _detail(attempts: Sequence[Attempt], pinned_by: str) -> str:
    """Why the default selection is not exact, and what became of the others."""
    first, *others = attempts
    tried = [attempt.selection.describe() for attempt in others if attempt.ran]
    said = f"{first.reason}."
    if pinned_by and first.ran:
        said += f" The qmv_wide retry was skipped because {pinned_by} is pinned."
    elif tried:
        said += f" Selecting {' or '.join(tried)} did not make it exact either."
    return said


def _not_run(selection: Selection, reason: object) -> Attempt:
    return Attempt(selection=selection, reason=f"exactness probe did not run: {reason}", ran=False)


def _why_not_runnable(target: Target, settings: ProbeSettings) -> str | None:
    if settings.block_size < 2:
        return f"block size {settings.block_size} has nothing to verify; it must be at least 2"
    if target.vocab_size < 2:
        return f"a vocabulary of {target.vocab_size} cannot differ"
    caches = target.make_cache()
    if not edge_lengths(caches, settings.block_size, settings.context_length):
        return f"a context of {settings.context_length} tokens leaves no room for a block"
    return why_not_rewindable(caches)


def _prefill(target: Target, settings: ProbeSettings) -> Generator[None, None, list[_Start]]:
    """Every context of every draw, each draw's prompt prefilled once; shortest contexts first."""
    lengths = edge_lengths(target.make_cache(), settings.block_size, settings.context_length)
    starts: list[tuple[int, _Start]] = []
    for draw in draws(settings.draws, lengths, settings.block_size, target.vocab_size):
        starts += yield from _prefill_draw(target, draw, settings.prefill_chunk)
    starts.sort(key=lambda item: item[0])
    return [start for _, start in starts]


def _prefill_draw(target: Target, draw: Draw, chunk: int) -> Generator[None, None, list[tuple[int, _Start]]]:
    caches, done = target.make_cache(), 0
    starts: list[tuple[int, _Start]] = []
    for length in draw.lengths:
        while done < length:
            end = min(length, done + chunk)
            mx.eval(target.forward(mx.array([draw.prompt[done:end]]), caches).hidden)
            done = end
            yield
        starts.append((length, _Start(clone_caches(caches), draw.block)))
    return starts


def _attempt(
    target: Target, selection: Selection, starts: Sequence[_Start], plain_caches: PlainCaches
) -> Generator[None, None, Attempt]:
    if reason := why_unavailable(selection):
        return Attempt(selection=selection, reason=reason, ran=False)
    with selected(target, selection):
        for index, start in enumerate(starts):
            try:
                # Blocks shorter than K occur when little is left to draft; once is enough to compare them.
                reason = yield from _compare(target, start, plain_caches, every_size=index == 0)
            except (ValueError, TypeError, AttributeError) as error:
                # A model that cannot be evaluated this way is not exact this way.
                return _not_run(selection, error)
            if reason:
                return Attempt(selection=selection, reason=reason)
    return Attempt(selection=selection)


def _compare(
    target: Target, start: _Start, plain_caches: PlainCaches, every_size: bool
) -> Generator[None, None, str]:
    """Why block and chain differ after one context, or an empty string."""
    caches, rows = plain_caches(clone_caches(start.caches)), []
    for token in start.block:
        row = target.forward(mx.array([[token]]), caches).logits[0]
        mx.eval(row)
        rows.append(row)
        yield
    chain = mx.concatenate(rows)
    sizes = range(len(start.block), 1, -1) if every_size else (len(start.block),)
    for size in sizes:
        caches = clone_caches(start.caches)
        block = target.open_block(caches, size)
        logits = target.verify(mx.array([start.block[:size]]), block).logits[0]
        block.keep(1)
        after = target.forward(mx.array([[start.block[1]]]), caches).logits[0]
        reason = block_difference(logits, chain) or rewind_difference(after, chain[1:2])
        yield
        if reason:
            return reason
    return ""


def differing_bytes(left: mx.array, right: mx.array) -> mx.array:
    """Per row, how many bytes of two arrays [rows, V] of one type differ: int [rows]."""
    unequal = mx.view(left, mx.uint8) != mx.view(right, mx.uint8)
    return unequal.sum(axis=-1)


def block_difference(block: mx.array, chain: mx.array) -> str:
    counts: list[int] = differing_bytes(block, chain[: block.shape[0]]).tolist()  # pyright: ignore[reportAssignmentType]
    position = next((i for i, count in enumerate(counts) if count), None)
    if position is None:
        return ""
    total = block.shape[-1] * block.dtype.size
    return (
        f"verify block position {position} differs from the single-token chain "
        f"in {counts[position]} of {total} logit bytes"
    )


def rewind_difference(after: mx.array, chain: mx.array) -> str:
    count = differing_bytes(after, chain).item()
    total = chain.shape[-1] * chain.dtype.size
    if not count:
        return ""
    return f"decode after a rewind differs from the single-token chain in {count} of {total} logit bytes"


def _cost(
    target: Target, selection: Selection, start: _Start, settings: ProbeSettings
) -> Generator[None, None, VerifyCost]:
    caches, block = start.caches, start.block
    plain: list[float] = []
    single: list[float] = []
    # Taken in turn, because their quotient matters and the machine's pace may change between two runs.
    for _ in range(settings.repeats):
        plain.append((yield from measure_rows(target, caches, block[:1], 1)))
        with selected(target, selection):
            single.append((yield from measure_rows(target, caches, block[:1], 1)))
    rows_ms = [min(single)]
    with selected(target, selection):
        for rows in range(2, len(block) + 1):
            ms = yield from measure_rows(target, caches, block[:rows], settings.repeats)
            rows_ms.append(ms)
    return VerifyCost(plain_ms=min(plain), rows_ms=tuple(rows_ms))
