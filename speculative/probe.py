"""The exactness probe: does a K-row verify give the bytes of K one-row decodes, and under which selection?

Owns comparing, trying selections in order and measuring what verifying costs. Knows no requests; what to do
about a failure is decided elsewhere.
"""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import mlx.core as mx
from msgspec import Struct

from speculative.probe_plan import Draw, draws, edge_lengths
from speculative.rollback import clone_caches, why_not_rewindable
from speculative.selection import DEFAULT, Selection, candidates, selected, why_unavailable
from speculative.target import Target
from speculative.verify_cost import CostPlan, VerifyCost, measure_cost

# Readies a sequence's caches for the kind of decode the server does without speculation.
PlainCaches = Callable[[list[Any]], list[Any]]


class ProbeSettings(Struct, frozen=True, kw_only=True):
    """What to compare: `context_length` bounds contexts, in tokens; `repeats` are timings of a row count.

    `other_sizes` are further block sizes to be compared once a selection is exact for `block_size`. The cost
    of a verify is measured up to `cost_rows` rows, blocks permitting more if they are larger.
    `pinned_by` names what forbids to try other kernels than the default ones, if anything does.
    """

    block_size: int
    context_length: int
    other_sizes: tuple[int, ...] = ()
    draws: int = 3
    cost_rows: int = 8
    prefill_chunk: int = 256
    repeats: int = 8
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
    `exact_sizes` are the block sizes that were compared after every context and never differed under
    `selection`, nor did any smaller one that was compared; ascending.
    """

    exact: bool
    selection: Selection
    detail: str
    attempts: tuple[Attempt, ...]
    verify_cost: VerifyCost
    duration_ms: float
    exact_sizes: tuple[int, ...] = ()


class _Start(Struct, frozen=True):
    """The caches after a context of `length` tokens, and the rows that may follow."""

    caches: list[Any]
    block: tuple[int, ...]
    length: int


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
            attempt = yield from _attempt(target, selection, starts, settings.block_size, plain_caches)
            attempts.append(attempt)
            if not attempt.reason:
                exact = selection
                break
    sizes: tuple[int, ...] = ()
    if exact:
        sizes = yield from _exact_sizes(target, exact, starts, settings, plain_caches)
    measured = exact or (DEFAULT if attempts[0].ran else None)
    cost = VerifyCost(plain_ms=0.0, rows_ms=())
    if measured:
        start = starts[0]
        plan = _cost_plan(settings, min(len(start.block), measured.max_rows))
        cost = yield from measure_cost(target, measured, start.caches, start.block, plan)
    return ProbeResult(
        exact=exact is not None,
        selection=exact or DEFAULT,
        detail="" if exact else _detail(attempts, settings.pinned_by),
        attempts=tuple(attempts),
        verify_cost=cost,
        duration_ms=(time.perf_counter() - begin) * 1e3,
        exact_sizes=sizes,
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
    caches, limit = target.make_cache(), settings.context_length
    sizes = (settings.block_size, *settings.other_sizes)
    # Where a block straddles an edge depends on its size.
    lengths = {length for size in sizes for length in edge_lengths(caches, size, limit)}
    rows = max(*sizes, settings.cost_rows)
    starts: list[_Start] = []
    for draw in draws(settings.draws, tuple(sorted(lengths)), rows, target.vocab_size):
        starts += yield from _prefill_draw(target, draw, settings)
    return sorted(starts, key=lambda start: start.length)


def _prefill_draw(target: Target, draw: Draw, settings: ProbeSettings) -> Generator[None, None, list[_Start]]:
    caches, done = target.make_cache(), 0
    starts: list[_Start] = []
    for length in draw.lengths:
        while done < length:
            end = min(length, done + settings.prefill_chunk)
            mx.eval(target.forward(mx.array([draw.prompt[done:end]]), caches).hidden)
            done = end
            yield
        block = draw.block[: settings.context_length - length]
        starts.append(_Start(clone_caches(caches), block, length))
    return starts


def _attempt(
    target: Target,
    selection: Selection,
    starts: Sequence[_Start],
    block_size: int,
    plain_caches: PlainCaches,
) -> Generator[None, None, Attempt]:
    if reason := why_unavailable(selection):
        return Attempt(selection=selection, reason=reason, ran=False)
    with selected(target, selection):
        for start in starts:
            # Rounds with fewer drafts than asked for verify shorter blocks.
            try:
                differing = yield from _compare(target, start, range(block_size, 1, -1), plain_caches)
            except (ValueError, TypeError, AttributeError) as error:
                # A model that cannot be evaluated this way is not exact this way.
                return _not_run(selection, error)
            if differing:
                return Attempt(selection=selection, reason=next(iter(differing.values())))
    return Attempt(selection=selection)


def _exact_sizes(
    target: Target,
    selection: Selection,
    starts: Sequence[_Start],
    settings: ProbeSettings,
    plain_caches: PlainCaches,
) -> Generator[None, None, tuple[int, ...]]:
    """The block sizes that are exact after every context; kernels may change at any number of rows."""
    # Those up to the settings' own have been compared with it.
    sizes = {size for size in settings.other_sizes if 2 <= size < settings.block_size}
    # The shortest context leaves most room: what does not fit there is compared nowhere.
    most = min(len(starts[0].block), selection.max_rows)
    larger = sorted(size for size in settings.other_sizes if settings.block_size < size <= most)
    with selected(target, selection):
        for start in starts:
            differing = (yield from _compare(target, start, larger, plain_caches)) if larger else {}
            # A round may verify fewer rows than its block size, so one that differs rules out all above it.
            larger = [size for size in larger if size < min(differing, default=most + 1)]
    return tuple(sorted(sizes | {settings.block_size, *larger}))


def _compare(
    target: Target, start: _Start, sizes: Iterable[int], plain_caches: PlainCaches
) -> Generator[None, None, dict[int, str]]:
    """Which blocks differ from the chain after one context, and why; what has no room is left out."""
    fitting = [size for size in sizes if size <= len(start.block)]
    caches, rows = plain_caches(clone_caches(start.caches)), []
    for token in start.block[: max(fitting, default=0)]:
        row = target.forward(mx.array([[token]]), caches).logits[0]
        mx.eval(row)
        rows.append(row)
        yield
    differing: dict[int, str] = {}
    for size in fitting:
        chain = mx.concatenate(rows[:size])
        caches = clone_caches(start.caches)
        block = target.open_block(caches, size)
        logits = target.verify(mx.array([start.block[:size]]), block).logits[0]
        block.keep(1)
        after = target.forward(mx.array([[start.block[1]]]), caches).logits[0]
        reason = block_difference(logits, chain) or rewind_difference(after, chain[1:2])
        yield
        if reason:
            differing[size] = reason
    return differing


def differing_bytes(left: mx.array, right: mx.array) -> mx.array:
    """Per row, how many bytes of two arrays [rows, V] of one type differ: int [rows]."""
    unequal = mx.view(left, mx.uint8) != mx.view(right, mx.uint8)
    return unequal.sum(axis=-1)


def block_difference(block: mx.array, chain: mx.array) -> str:
    """How logits [rows, V] of a block differ from those of single steps; empty when no byte does."""
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
    """How logits [1, V] of a step after a rewind differ from the chain's; empty when no byte does."""
    count = differing_bytes(after, chain).item()
    total = chain.shape[-1] * chain.dtype.size
    if not count:
        return ""
    return f"decode after a rewind differs from the single-token chain in {count} of {total} logit bytes"


def _cost_plan(settings: ProbeSettings, most_rows: int) -> CostPlan:
    served = max(settings.block_size, *settings.other_sizes, 0)
    rows = min(most_rows, max(settings.block_size, settings.cost_rows))
    return CostPlan(rows=rows, served=min(served, rows), turns=settings.repeats)
