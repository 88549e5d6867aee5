"""Whether and how requests speculate in this process: drafter, exactness, gate and counters.

Reads the gate as a plain field once per request. Knows no lanes and sends no messages.
"""

from collections import Counter
from collections.abc import Sequence as Seq

from msgspec.structs import replace

from engine.audit import LiveAudit
from engine.copying import Copying
from engine.course import PLAIN, Course, course_for
from engine.history import DraftHistory
from engine.identity import Identity
from engine.measurement import Measurement
from engine.prompt_cache import PromptState
from engine.sequence import Sequence
from messages.policy import Counts, Declined, DeclineReason, FallbackReason, FellBack, Gate, Sample
from messages.requests import GenerateRequest
from speculative.audit import Mismatch
from speculative.drafter import Drafter

# A bonus token, and one round that can emit two.
MIN_TOKENS = 4


class Speculator:
    """The speculative side of one engine with a drafter."""

    def __init__(
        self,
        drafter: Drafter,
        block_size: int,
        identity: Identity,
        audit: LiveAudit | None = None,
        allow_inexact: bool = False,
        copies: bool = False,
    ) -> None:
        """Speculates with `block_size` rows per verify forward, once it is known to be exact.

        Without `audit` no round is re-checked; with `allow_inexact` a mismatch is counted but stops nothing;
        with `copies` the text's own repetitions are proposed before the drafter is asked.
        """
        self.drafter = drafter
        self.audit = audit or LiveAudit()
        # Set by the exactness probe; without it nothing speculates, whatever the gate says.
        self.is_exact = False
        self._plain_scale = 1.0
        self._identity = identity
        self._allow_inexact = allow_inexact
        self._copies = copies
        self._depth = block_size - 1
        self._set(Gate())
        self._eligible = 0
        self._attempts = 0
        self._bursts = 0
        self._declines: Counter[DeclineReason] = Counter()
        self._fallbacks: Counter[FallbackReason] = Counter()

    @property
    def block_size(self) -> int:
        """Rows of a verify forward of requests that start now."""
        return self._depth + 1

    @property
    def gate(self) -> Gate:
        """The gate in force."""
        return self._gate

    @gate.setter
    def gate(self, gate: Gate) -> None:
        self._set(gate)

    @property
    def plain_scale(self) -> float:
        """Time of ordinary decode over that of a plain step under the kernels in force, at most 1."""
        return self._plain_scale

    @plain_scale.setter
    def plain_scale(self, scale: float) -> None:
        self._plain_scale = scale
        self._set(self._gate)

    def resize(self, block_size: int) -> None:
        """Speculate with another block size from the next request on.

        Whatever the gate said was about the old size, so it stays closed until a newer one comes.
        """
        self._depth = block_size - 1
        self._set(Gate(version=self._gate.version))

    def _set(self, gate: Gate) -> None:
        """Everything a request's plan depends on is worked out here, once per gate."""
        self._gate = gate
        self._ordinary = course_for(self._in_own_steps(gate), self._depth, is_measured=False)
        self._measured = course_for(gate, self._depth, is_measured=True)
        self._insisted = Course(depth=self._depth, is_insisted=True)
        self._measure_every = gate.measure_every
        self._is_open = gate.enabled or gate.measure_every > 0

    def _in_own_steps(self, gate: Gate) -> Gate:
        """`gate` with the break-even against this server's plain steps, which is what bailing out leads to.

        The policy's is against ordinary decode, beside which plain steps may be padded.
        """
        if gate.bail_out is None:
            return gate
        break_even = gate.bail_out.break_even_emitted * self._plain_scale
        return replace(gate, bail_out=replace(gate.bail_out, break_even_emitted=break_even))

    @property
    def counts(self) -> Counts:
        """Counters since the process started."""
        return Counts(
            attempts=self._attempts,
            bursts=self._bursts,
            declines=tuple(Declined(reason, count) for reason, count in sorted(self._declines.items())),
            fallbacks=tuple(FellBack(reason, count) for reason, count in sorted(self._fallbacks.items())),
            audited=self.audit.audited,
            mismatches=self.audit.mismatches,
        )

    def plan(self, request: GenerateRequest) -> Course:
        """The course of a new request: the gate's, unless the request itself chose."""
        if request.speculative is False or not self.is_exact:
            return PLAIN
        if request.speculative:
            return self._insisted
        if not self._is_open:
            return PLAIN
        if request.max_tokens < MIN_TOKENS:
            self._attempts += 1
            self.note_decline("too_short")
            return PLAIN
        self._eligible += 1
        is_measured = self._measure_every > 0 and self._eligible % self._measure_every == 0
        course = self._measured if is_measured else self._ordinary
        if course.speculates:
            self._attempts += 1
        return course

    def history(self, course: Course, stored: PromptState | None) -> DraftHistory | None:
        """A history for a course that speculates, continuing the stored one of a cached prefix."""
        if not course.speculates:
            return None
        if stored is None or stored.history_caches is None:
            return DraftHistory(self.drafter)
        state = self.drafter.make_state()
        state.caches = stored.history_caches
        # The pair of the last cached token is complete only with the token that follows it.
        state.length = stored.length - 1
        state.waiting = stored.boundary_features[-1]
        return DraftHistory(self.drafter, state)

    def measurement(self, course: Course) -> Measurement | None:
        """What collects the sample of a measured request."""
        return Measurement(course.depth, self.plain_scale) if course.is_measured else None

    def copying(self, course: Course, prompt: Seq[int]) -> Copying | None:
        """What copies drafts from the text of a request that speculates, if copies are wanted."""
        return Copying(prompt) if self._copies and course.speculates else None

    def note_burst(self) -> None:
        """An attempt has got through: its first round ran."""
        self._bursts += 1

    def note_decline(self, reason: DeclineReason) -> None:
        """An attempt has ended without a round."""
        self._declines[reason] += 1

    def note_fallback(self, reason: FallbackReason) -> None:
        """A request that was speculating goes on in plain decode."""
        self._fallbacks[reason] += 1

    def note_audit(self, found: Mismatch | None) -> None:
        """A round was audited; a mismatch ends speculation at once, unless inexactness is allowed."""
        self.audit.note(found)
        if found is not None and not self._allow_inexact:
            self.is_exact = False

    def sample(self, sequence: Sequence, measurement: Measurement, cancelled: bool) -> Sample | None:
        """The report of a measured request that has ended; None when nothing was measured."""
        totals = measurement.totals
        if not (totals.rounds or totals.probe_rounds or measurement.slices):
            return None
        return Sample(
            model=self._identity.model,
            incarnation=self._identity.incarnation,
            rounds=totals.rounds,
            proposed=totals.proposed,
            accepted=totals.accepted,
            emitted=totals.emitted,
            accepted_per_position=tuple(totals.per_position),
            slices=tuple(measurement.slices),
            draft_ms=totals.draft_ms,
            verify_ms=totals.verify_ms,
            overhead_ms=totals.overhead_ms,
            probe_rounds=totals.probe_rounds,
            probe_ms=totals.probe_ms,
            prompt_tokens=len(sequence.request.prompt),
            temperature="greedy" if sequence.request.sampling.temperature == 0 else "sampled",
            cancelled=cancelled,
            counts=self.counts,
        )
