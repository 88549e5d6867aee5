"""A sequence past its prompt: what it needs to take the next step in any lane, and carries between lanes."""

from typing import Any, Literal, NamedTuple

import mlx.core as mx

from engine.copying import Copying
from engine.course import PLAIN, Course
from engine.history import DraftHistory
from engine.measurement import Measurement
from engine.sequence import Sequence
from messages.policy import DeclineReason

GiveUpReason = Literal["drafter_failed", "audit"]


class Pending(NamedTuple):
    """A step under way: the picked token [1], its log-probabilities [1, V], features of the fed token."""

    token: mx.array
    logprobs: mx.array
    features: mx.array | None


class Decoding:
    """One decoding sequence.

    `caches` hold every token before `bonus`, the newest decided one, but for `unfed`, the end of a prompt
    that is left to the batch lane; with `pending` set they hold the bonus too. `history` is None for a
    sequence that will not speculate.
    """

    def __init__(self, sequence: Sequence, caches: list[Any], history: DraftHistory | None) -> None:
        """At first the bonus is the last token of the prompt."""
        self.sequence = sequence
        self.caches = caches
        self.history = history
        self.bonus = sequence.request.prompt[-1]
        self.unfed: tuple[int, ...] = ()
        self.pending: Pending | None = None
        self.course: Course = PLAIN
        self.copying: Copying | None = None
        self.measurement: Measurement | None = None
        self.gave_up: GiveUpReason | None = None
        self.was_batched = False

    @property
    def position(self) -> int:
        """Index, in the generated text, of the next token to be emitted."""
        return len(self.sequence.token_ids)

    @property
    def why_no_round(self) -> DeclineReason:
        """What kept a sequence that was to speculate, and has ended without a round, from its first one."""
        return self.gave_up or ("concurrent" if self.was_batched else "too_short")

    def give_up_drafting(self, reason: GiveUpReason) -> None:
        """Decode plainly from here on."""
        self.gave_up = reason
        self.history = None
        self.course = PLAIN
        self.measurement = None
