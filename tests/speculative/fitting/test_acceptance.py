"""Replaying rounds over known hits, and acceptance of a head that must be right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculative.fitting.acceptance import replay, total


def test_rounds_go_on_after_what_they_emit() -> None:
    """A round with two hits and a miss covers three slots; the next one starts behind them."""
    first = [True, False, False, False, True]
    second = [False, True, False, False, False]
    third = [False] * 5
    found = replay([first, second, third], 0)
    # Slots 0-2 (two accepted), 3 (none), 4 (one, then the answer ends).
    assert (found.rounds, found.reached, found.accepted) == (3, (3, 1, 1), (2, 1, 0))
    assert found.conditional == (2 / 3, 1.0, 0.0)
    assert found.emitted_per_round == 2.0


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=3, max_size=3), st.integers(0, 3))
def test_every_slot_belongs_to_exactly_one_round(rows: list[list[bool]], first: int) -> None:
    """Accepted drafts and one token a round cover the answer, give or take the last round."""
    slots = min(len(row) for row in rows)
    found = replay([row[:slots] for row in rows], first)
    covered = sum(found.accepted) + found.rounds
    assert max(slots - first, 0) <= covered <= max(slots - first, 0) + 1
    assert all(a <= r for a, r in zip(found.accepted, found.reached, strict=True))
    assert all(later <= earlier for earlier, later in zip(found.accepted, found.reached[1:], strict=False))


def test_no_measurement_is_an_error() -> None:
    """Asking for the total of nothing names the reason."""
    with pytest.raises(ValueError, match="held-out"):
        total({})
