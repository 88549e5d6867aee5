"""The solo lane: exactly one decoding sequence, stepping plainly or in speculative rounds on its own caches.

Owns how a step is taken; which kind of step is the course's decision, when a sequence ends its own.
"""

import time
from collections.abc import Sequence as Seq
from typing import cast

import mlx.core as mx

from engine.course import Step, advance, next_step
from engine.decoding import Decoding, GiveUpReason, Pending
from engine.forwarder import Forwarder
from engine.measurement import with_round
from engine.picker import Picker
from engine.speculator import Speculator
from messages.events import DraftTimings, TokensEmitted
from messages.policy import FallbackReason
from speculative.audit import Start, audit_round, start_of
from speculative.round import Burst, DraftFailedError, Round, run_round
from speculative.target import Target


class SoloLane:
    """One sequence at most."""

    def __init__(
        self,
        forwarder: Forwarder,
        target: Target | None,
        speculator: Speculator | None,
        context_length: int,
    ) -> None:
        """`target` is the forwarder's tapped target; without a drafter it and `speculator` are None."""
        self._forwarder = forwarder
        self._target = target
        self._speculator = speculator
        self._context_length = context_length
        self._decoding: Decoding | None = None
        self._picker: Picker | None = None

    @property
    def decoding(self) -> Decoding | None:
        """The sequence in the lane."""
        return self._decoding

    def enter(self, decoding: Decoding) -> None:
        """Take a sequence in; the lane must be empty."""
        if self._decoding is not None:
            raise RuntimeError("the solo lane is taken")
        self._decoding = decoding
        self._picker = Picker(decoding.sequence, self._context_length)

    def step(self) -> TokensEmitted | None:
        """Take one step; the caller looks at the sequence's finish reason afterwards."""
        decoding, picker = self._occupied()
        if decoding.history is not None and self._speculator is not None and not self._speculator.is_exact:
            self._give_up(decoding, "audit")
        step = next_step(decoding.course, decoding.sequence.remaining_tokens)
        can_draft = decoding.history is not None and decoding.history.can_draft
        if step == "plain" or decoding.pending is not None or not can_draft:
            return self._single(decoding, picker, "plain")
        if step == "probe":
            return self._single(decoding, picker, "probe")
        try:
            return self._round(decoding, picker)
        except DraftFailedError:
            self._give_up(decoding, "drafter_failed")
            return self._single(decoding, picker, "plain")

    def settle(self) -> TokensEmitted | None:
        """Finish the step under way, so that the caches hold everything before the bonus."""
        decoding, picker = self._occupied()
        if decoding.pending is None:
            return None
        return self._take_pending(decoding, picker, ahead=False)

    def leave(self) -> Decoding:
        """Take the settled sequence out."""
        decoding, _ = self._occupied()
        self._decoding = self._picker = None
        return decoding

    def _single(self, decoding: Decoding, picker: Picker, step: Step) -> TokensEmitted | None:
        started = time.perf_counter()
        course = decoding.course
        after = advance(course, step, 1)
        remaining = decoding.sequence.remaining_tokens
        # The next forward is launched before this token is read, unless a round comes next or nothing does.
        ahead = remaining > 1 and step == "plain" and next_step(after, remaining - 1) == "plain"
        event = self._take_pending(decoding, picker, ahead)
        wall_ms = (time.perf_counter() - started) * 1e3
        if decoding.measurement is not None:
            decoding.measurement.add_single(step, wall_ms, course.slice_plain_tokens)
        decoding.course = after
        return event

    def _take_pending(self, decoding: Decoding, picker: Picker, ahead: bool) -> TokensEmitted | None:
        position = decoding.position
        pending = decoding.pending or self._launch(decoding, picker, mx.array([decoding.bonus]), position)
        decoding.pending = self._launch(decoding, picker, pending.token, position + 1) if ahead else None
        token_id = cast(int, pending.token.item())
        if decoding.history is not None and pending.features is not None:
            decoding.history.note(decoding.bonus, pending.features)
        decoding.bonus = token_id
        return decoding.sequence.emit([token_id], pending.logprobs)

    def _launch(self, decoding: Decoding, picker: Picker, fed: mx.array, position: int) -> Pending:
        out = self._forwarder(fed[None], decoding.caches)
        token = picker(out.logits[0], fed, position)
        picker.launch(token)
        return Pending(token, picker.logprobs, out.features)

    def _round(self, decoding: Decoding, picker: Picker) -> TokensEmitted | None:
        audited = self._start_of_audit(decoding)
        started = time.perf_counter()
        done, event = self._run(decoding, picker)
        decoding.bonus = done.bonus
        _count(decoding, done)
        wall_ms = (time.perf_counter() - started) * 1e3
        if audited is not None:
            self._audit(decoding, picker, audited, done)
        elif decoding.measurement is not None:
            decoding.measurement.add_round(done, wall_ms)
        bails = decoding.course.bail_out.bails
        decoding.course = advance(decoding.course, "round", len(done.emitted))
        if decoding.course.bail_out.bails > bails:
            self._note_fallback("bail_out")
        if done.drafter_error is not None:
            self._give_up(decoding, "drafter_failed")
        return event

    def _start_of_audit(self, decoding: Decoding) -> Start | None:
        """What auditing the next round takes, if it is its turn."""
        if self._speculator is None or not self._speculator.audit.is_due():
            return None
        return start_of(decoding.caches, decoding.bonus, decoding.position)

    def _audit(self, decoding: Decoding, picker: Picker, start: Start, done: Round) -> None:
        """Re-check a round whose tokens are final; what it took is nobody's measurement."""
        if self._speculator is None or self._target is None:
            return
        self._speculator.note_audit(audit_round(self._target, start, done, decoding.caches, picker))
        if decoding.measurement is not None:
            decoding.measurement.skip_round()

    def _run(self, decoding: Decoding, picker: Picker) -> tuple[Round, TokensEmitted | None]:
        history, sequence = decoding.history, decoding.sequence
        if history is None or self._target is None:
            raise DraftFailedError("no drafter")
        try:
            history.catch_up(decoding.bonus)
        except Exception as error:  # whatever is wrong with a drafter, the target can still decode
            raise DraftFailedError(str(error)) from error
        depth = min(decoding.course.depth, sequence.remaining_tokens - 1)
        copying = decoding.copying
        burst = Burst(
            target=self._target,
            caches=decoding.caches,
            bonus=decoding.bonus,
            position=decoding.position,
            drafter=history.drafter,
            state=history.state,
            copied=copying.propose(sequence.token_ids, depth) if copying else (),
            noise=picker.noise,
        )
        events: list[TokensEmitted | None] = []

        def limit(emitted: Seq[int]) -> int:
            before = len(sequence.token_ids)
            events.append(sequence.emit(emitted, picker.logprobs))
            return len(sequence.token_ids) - before

        done = run_round(burst, depth, picker, limit)
        if copying:
            copying.note(done)
        return done, events[0]

    def _give_up(self, decoding: Decoding, reason: GiveUpReason) -> None:
        self._note_fallback(reason)
        decoding.give_up_drafting(reason)

    def _note_fallback(self, reason: FallbackReason) -> None:
        if self._speculator is not None:
            self._speculator.note_fallback(reason)

    def _occupied(self) -> tuple[Decoding, Picker]:
        if self._decoding is None or self._picker is None:
            raise RuntimeError("the solo lane is empty")
        return self._decoding, self._picker


def _count(decoding: Decoding, done: Round) -> None:
    history = decoding.history
    if history is None:
        return
    before = decoding.sequence.draft or DraftTimings(
        draft_n=0, draft_n_accepted=0, draft_rounds=0, draft_kind=history.drafter.kind
    )
    decoding.sequence.draft = with_round(before, done)
