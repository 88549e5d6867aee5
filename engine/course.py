"""What kind of step a decoding sequence takes next, decided once per request and counted in tokens only.

Pure: no clock and no randomness, so the same request takes the same course on every run.
"""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from engine import bail_out
from engine.bail_out import BailOutState
from messages.policy import BailOut, Gate

Step = Literal["plain", "round", "probe"]


class Course(Struct, frozen=True, kw_only=True):
    """A request's plan and where it stands.

    `depth` 0 is plain decode throughout. `is_insisted` says that the request asked for speculation itself, so
    it is no attempt of the policy's. A measured request starts with `probes_left` one-token rounds, then
    alternates `slice_rounds` rounds with `slice_plain_tokens` plain tokens (0 rounds: rounds only). `rounds`
    and `plain_tokens` count within the present slice.
    """

    depth: int = 0
    is_insisted: bool = False
    is_measured: bool = False
    probes_left: int = 0
    slice_rounds: int = 0
    slice_plain_tokens: int = 0
    limits: BailOut | None = None
    bail_out: BailOutState = BailOutState()
    rounds: int = 0
    plain_tokens: int = 0

    @property
    def speculates(self) -> bool:
        """Whether rounds may come at all."""
        return self.depth > 0

    @property
    def is_attempt(self) -> bool:
        """Whether what becomes of it tells how the policy's decisions fare."""
        return self.speculates and not self.is_insisted


PLAIN = Course()


def course_for(gate: Gate, depth: int, is_measured: bool) -> Course:
    """The course of an eligible request under `gate`; `depth` is block size - 1."""
    if is_measured:
        return Course(
            depth=depth,
            is_measured=True,
            probes_left=gate.probe_rounds,
            slice_rounds=gate.slice_rounds,
            slice_plain_tokens=gate.slice_plain_tokens,
        )
    return Course(depth=depth, limits=gate.bail_out) if gate.enabled else PLAIN


def next_step(course: Course, remaining_tokens: int) -> Step:
    """The kind of the next step when up to `remaining_tokens` tokens may still be emitted."""
    # A round with one token to go would verify drafts that cannot be emitted.
    if not course.speculates or remaining_tokens < 2:
        return "plain"
    if course.probes_left:
        return "probe"
    if course.is_measured and course.slice_rounds and course.rounds >= course.slice_rounds:
        return "plain"
    return "round" if course.bail_out.may_speculate else "plain"


def advance(course: Course, step: Step, emitted: int) -> Course:
    """The course after a step that emitted `emitted` tokens."""
    match step:
        case "probe":
            return replace(course, probes_left=course.probes_left - 1)
        case "round":
            state = course.bail_out
            if course.limits is not None:
                state = bail_out.after_round(course.limits, state, emitted)
            return replace(course, rounds=course.rounds + 1, bail_out=state)
        case "plain":
            return _after_plain(course, emitted)


def _after_plain(course: Course, emitted: int) -> Course:
    if not course.is_measured:
        return replace(course, bail_out=bail_out.after_plain(course.bail_out, emitted))
    plain_tokens = course.plain_tokens + emitted
    if plain_tokens >= course.slice_plain_tokens:
        return replace(course, rounds=0, plain_tokens=0)
    return replace(course, plain_tokens=plain_tokens)
