"""Where a fitting run is, for whoever shows it."""

from typing import Literal

from msgspec import Struct

Phase = Literal["asking", "corpus", "held-out", "start", "train", "report"]


class Progress(Struct, frozen=True, kw_only=True):
    """Where a run is: `done` of `amount` units of a phase, estimated seconds left in it, a remark."""

    phase: Phase
    done: int
    amount: int
    seconds_left: float
    remark: str = ""
