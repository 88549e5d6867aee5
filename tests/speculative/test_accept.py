"""The acceptance rule as a property."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculative.accept import accept

tokens = st.integers(0, 3)


@st.composite
def drafts_and_picks(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    drafts = draw(st.lists(tokens, max_size=7))
    return drafts, draw(st.lists(tokens, min_size=len(drafts) + 1, max_size=len(drafts) + 1))


@given(drafts_and_picks())
def test_emitted_is_the_longest_confirmed_prefix_and_one_pick(case: tuple[list[int], list[int]]) -> None:
    """Emitted tokens are picks; all but the last were drafted; the next draft, if any, was refused."""
    drafts, picks = case
    result = accept(drafts, picks)
    assert result.emitted == tuple(picks[: result.count + 1])
    assert list(result.emitted[:-1]) == drafts[: result.count]
    assert result.count == len(drafts) or drafts[result.count] != picks[result.count]


@given(st.lists(tokens, min_size=1))
def test_a_perfect_draft_is_accepted_whole(picks: list[int]) -> None:
    """Drafting the picks themselves emits them all."""
    assert accept(picks[:-1], picks).emitted == tuple(picks)


@given(drafts_and_picks(), drafts_and_picks())
def test_what_follows_a_refused_draft_does_not_matter(
    case: tuple[list[int], list[int]], other: tuple[list[int], list[int]]
) -> None:
    """Drafts and picks after the first mismatch change nothing."""
    drafts, picks = case
    result = accept(drafts, picks)
    if result.count == len(drafts):
        return
    tail_drafts, tail_picks = other
    changed = accept(drafts[: result.count + 1] + tail_drafts, picks[: result.count + 1] + tail_picks)
    assert changed == result


@pytest.mark.parametrize("picks", [[], [1], [1, 2, 3]])
def test_lengths_must_fit(picks: list[int]) -> None:
    """One draft needs two picks."""
    with pytest.raises(ValueError, match="for 1 drafts"):
        accept([1], picks)
