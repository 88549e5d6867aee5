"""The time of a drafted token: measured on any drafter, and missing for one that fails."""

import pytest

from speculative.draft_cost import draft_step
from speculative.drafter import Drafter
from speculative.model_drafter import ModelDrafter
from tests.speculative import tiny
from tests.speculative.drafters import ScriptedDrafter, random_drafter


def measured(drafter: Drafter, depth: int = 3) -> tuple[float | None, int]:
    """The answer and the pieces it took."""
    steps, pieces = draft_step(tiny.target("llama"), drafter, depth), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, pieces
        pieces += 1


@pytest.mark.parametrize("make", [random_drafter, lambda: ModelDrafter(tiny.llama_model())])
def test_a_drafted_token_has_a_time(make: object) -> None:
    """For a stateless drafter and for one with caches of its own, in pieces between which requests fit."""
    ms, pieces = measured(make())  # pyright: ignore[reportCallIssue]
    assert ms is not None
    assert ms > 0
    assert pieces > 3


def test_a_drafter_that_fails_has_no_time() -> None:
    """It is not a reason to fail: nothing is known, so nothing is recommended."""

    def failing(done: list[int], depth: int) -> list[int]:
        raise RuntimeError("no proposal")

    assert measured(ScriptedDrafter(failing)) == (None, 0)
