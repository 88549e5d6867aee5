"""Adds up rounds: into any request's counters, and into the sample the policy asks for. Reads no clock."""

from itertools import zip_longest

from msgspec import Struct
from msgspec.structs import replace

from engine.course import Step
from messages.events import DraftTimings
from messages.policy import Slice
from speculative.round import Round


class Totals(Struct, kw_only=True):
    """Running totals of a request's speculative rounds; `per_position[i]` counts rounds that kept draft i."""

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0
    per_position: list[int] = []
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    overhead_ms: float = 0.0
    probe_rounds: int = 0
    probe_ms: float = 0.0


class Measurement:
    """The paired slices and totals of one request.

    A slice counts once its plain part is complete and all its rounds ran at full depth, so that neither the
    end of a text nor a short budget is mistaken for speed. `plain_scale` turns the time of a plain step as
    this server runs it into that of ordinary decode, where a kernel selection makes the two differ.
    """

    def __init__(self, depth: int, plain_scale: float = 1.0) -> None:
        self.totals = Totals(per_position=[0] * depth)
        self.slices: list[Slice] = []
        self._depth = depth
        self._plain_scale = plain_scale
        self._open = _OpenSlice()

    def add_round(self, done: Round, wall_ms: float) -> None:
        """A round of any depth, with the wall time of everything around it.

        The totals are about the drafter, so copied drafts count in the slices only.
        """
        if not done.is_copy:
            self._add_to_totals(done)
        if self._open.plain_tokens:
            self._open = _OpenSlice()
        self._open.rounds += 1
        self._open.emitted += len(done.emitted)
        self._open.mtp_ms += wall_ms
        self._open.is_whole &= done.depth == self._depth

    def _add_to_totals(self, done: Round) -> None:
        totals = self.totals
        totals.rounds += 1
        totals.proposed += done.drafted
        totals.accepted += done.accepted
        totals.emitted += len(done.emitted)
        for index in range(done.accepted):
            totals.per_position[index] += 1
        totals.draft_ms += done.draft_ms
        totals.verify_ms += done.verify_ms
        totals.overhead_ms += done.overhead_ms

    def skip_round(self) -> None:
        """A round whose time says nothing; neither it nor the slice it falls into is measured."""
        if self._open.plain_tokens:
            self._open = _OpenSlice()
        self._open.is_whole = False

    def add_single(self, step: Step, wall_ms: float, slice_plain_tokens: int) -> None:
        """A step that emitted one token: a probe round, or a plain step of a slice of that many tokens."""
        if step == "probe":
            self.totals.probe_rounds += 1
            self.totals.probe_ms += wall_ms
            return
        piece = self._open
        piece.plain_tokens += 1
        piece.plain_ms += wall_ms * self._plain_scale
        if piece.plain_tokens == slice_plain_tokens and piece.rounds and piece.is_whole:
            self.slices.append(
                Slice(piece.rounds, piece.emitted, piece.mtp_ms, piece.plain_tokens, piece.plain_ms)
            )


def with_round(before: DraftTimings, done: Round) -> DraftTimings:
    """A request's counters after one more round; copies are kept apart from the drafter's."""
    if done.is_copy:
        return replace(
            before,
            copy_n=before.copy_n + done.drafted,
            copy_n_accepted=before.copy_n_accepted + done.accepted,
            copy_rounds=before.copy_rounds + 1,
            copy_ms=before.copy_ms + done.wall_ms,
        )
    kept = (int(index < done.accepted) for index in range(done.drafted))
    positions = zip_longest(before.draft_accepted_per_position, kept, fillvalue=0)
    return replace(
        before,
        draft_n=before.draft_n + done.drafted,
        draft_n_accepted=before.draft_n_accepted + done.accepted,
        draft_rounds=before.draft_rounds + 1,
        draft_accepted_per_position=tuple(old + new for old, new in positions),
        draft_ms=before.draft_ms + done.draft_ms,
        draft_verify_ms=before.draft_verify_ms + done.verify_ms,
        draft_overhead_ms=before.draft_overhead_ms + done.overhead_ms,
    )


class _OpenSlice(Struct):
    rounds: int = 0
    emitted: int = 0
    mtp_ms: float = 0.0
    plain_tokens: int = 0
    plain_ms: float = 0.0
    is_whole: bool = True
