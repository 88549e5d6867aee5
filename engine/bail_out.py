"""Gives up a losing burst inside one request, and comes back later; knows only that request's own rounds."""

import msgspec
from msgspec import Struct

from messages.policy import BailOut


class BailOutState(Struct, frozen=True):
    """Rounds of the current window, and how much plain decode is left before speculation resumes."""

    rounds: int = 0
    emitted: int = 0
    plain_tokens_left: int = 0
    bails: int = 0

    @property
    def may_speculate(self) -> bool:
        """Whether the next step may be a round."""
        return self.plain_tokens_left == 0


def after_round(limits: BailOut, burst: BailOutState, emitted: int) -> BailOutState:
    """`burst` after a round that emitted `emitted` tokens; each bail-out pauses twice as long."""
    rounds, total = burst.rounds + 1, burst.emitted + emitted
    if rounds < limits.window_rounds:
        return BailOutState(rounds, total, bails=burst.bails)
    if total * limits.loss_ratio < limits.break_even_emitted * rounds:
        pause = limits.pause_tokens << min(burst.bails, 32)
        return BailOutState(plain_tokens_left=pause, bails=burst.bails + 1)
    # A fresh window, so that a good start cannot hide a bad stretch.
    return BailOutState(bails=burst.bails)


def after_plain(burst: BailOutState, tokens: int = 1) -> BailOutState:
    """`burst` after plain decode of `tokens` tokens."""
    return msgspec.structs.replace(burst, plain_tokens_left=max(burst.plain_tokens_left - tokens, 0))
