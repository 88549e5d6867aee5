"""Gives up a losing burst inside one request, and comes back later; knows only that request's own rounds."""

from msgspec import Struct
from msgspec.structs import replace

from messages.policy import BailOut


class BailOutState(Struct, frozen=True):
    """How far the burst is behind its best, and how much plain decode is left before speculation resumes.

    `lost_tokens` is the time lost, in tokens of plain decode: a cumulative sum that never falls below 0
    (E. S. Page, Continuous inspection schemes, Biometrika 41, 1954), so a good start hides no bad stretch.
    """

    lost_tokens: float = 0.0
    plain_tokens_left: int = 0
    bails: int = 0

    @property
    def may_speculate(self) -> bool:
        """Whether the next step may be a round."""
        return self.plain_tokens_left == 0


def after_round(limits: BailOut, burst: BailOutState, emitted: int) -> BailOutState:
    """`burst` after a round that emitted `emitted` tokens.

    Each bail-out pauses twice as long, and a burst that comes back has half of the limit to lose.
    """
    lost = max(0.0, burst.lost_tokens + limits.break_even_emitted - emitted)
    if lost <= limits.loss_tokens:
        return replace(burst, lost_tokens=lost)
    pause = limits.pause_tokens << min(burst.bails, 32)
    return BailOutState(limits.loss_tokens / 2, plain_tokens_left=pause, bails=burst.bails + 1)


def after_plain(burst: BailOutState, tokens: int = 1) -> BailOutState:
    """`burst` after plain decode of `tokens` tokens."""
    return replace(burst, plain_tokens_left=max(burst.plain_tokens_left - tokens, 0))
