"""The cost curve of verifying: what is timed, in which order."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from speculative import verify_cost
from speculative.selection import DEFAULT, Selection
from speculative.target import Target
from speculative.verify_cost import CostPlan, VerifyCost, measure_cost
from tests.speculative import tiny


def measured(plan: CostPlan) -> VerifyCost:
    """The cost of the plan's forwards after an empty context."""
    steps = measure_cost(tiny.target("llama"), DEFAULT, [], [1, 2, 3, 4], plan)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def test_a_drifting_pace_leaves_the_quotients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slows down by a tenth during each turn still shows what a row costs beside another."""
    clock = itertools.count()

    def slower_and_slower(target: Target, selection: Selection, caches: Any, tokens: Sequence[int]) -> float:
        return (10 + len(tokens)) * 1.02 ** next(clock)

    monkeypatch.setattr(verify_cost, "_timed", slower_and_slower)
    cost = measured(CostPlan(rows=4, served=4, turns=6))
    quotients = [ms / cost.plain_ms for ms in cost.rows_ms]
    assert quotients == pytest.approx([1, 12 / 11, 13 / 11, 14 / 11], rel=0.1)


def test_rows_that_are_never_served_are_timed_in_the_first_turns_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first turn warms up; two more are enough for a glance."""
    timed: list[int] = []

    def noted(target: Target, selection: Selection, caches: Any, tokens: Sequence[int]) -> float:
        timed.append(len(tokens))
        return 1.0

    monkeypatch.setattr(verify_cost, "_timed", noted)
    assert len(measured(CostPlan(rows=4, served=2, turns=5)).rows_ms) == 4
    assert [timed.count(rows) for rows in (2, 3, 4)] == [6, 3, 3]
