"""Where a benchmark says how far it is; what shows it is the caller's choice."""

from typing import Protocol


class Progress(Protocol):
    """Receives the number of steps, then the beginning of each."""

    def total(self, steps: int) -> None:
        """How many steps there will be."""
        ...

    def step(self, text: str) -> None:
        """A step begins, and the one before it is done."""
        ...
