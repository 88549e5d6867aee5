"""Copies of a text's own repetitions: where they come from, and how far they are trusted."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculative.lookup import CopyWindow, TextIndex, after_copy, after_drafts, skipped_rounds

# Few letters, so that runs occur again.
texts = st.lists(st.integers(0, 3), max_size=40)


def indexed(text: list[int]) -> TextIndex:
    """The index of a text given at once."""
    index = TextIndex()
    index.extend(text)
    return index


def searched(text: list[int], count: int) -> tuple[int, ...]:
    """What followed the latest earlier occurrence of the last three tokens, or else two, found by looking."""
    for length in (3, 2):
        if len(text) < length:
            continue
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                found = list(text)
                for i in range(count):
                    found.append(found[end + i])
                return tuple(found[len(text) :])
    return ()


@given(texts, st.integers(1, 8))
def test_a_continuation_is_what_a_search_finds(text: list[int], count: int) -> None:
    """The latest place wins, three tokens win over two, and a copy that meets its own end goes on."""
    assert indexed(text).continuation(count) == searched(text, count)


@given(texts, st.lists(st.integers(0, 40), max_size=5))
def test_a_text_may_come_in_pieces(text: list[int], cuts: list[int]) -> None:
    """Looking things up in between, and however a text is cut, the index is that of the whole."""
    index = TextIndex()
    ends = [*sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for begin, end in zip([0, *ends], ends, strict=False):
        index.extend(text[begin:end])
        assert index.continuation(4) == searched(text[:end], 4)
    assert len(index) == len(text)


def test_three_tokens_are_trusted_more_than_a_later_match_of_two() -> None:
    """After 1 2 3 came 4, though after the later 2 3 came 5."""
    assert indexed([1, 2, 3, 4, 0, 2, 3, 5, 1, 2, 3]).continuation(1) == (4,)


def test_a_loop_is_continued_beyond_the_end_of_the_text() -> None:
    """There is no end of a copy before its count is full."""
    assert indexed([7, 8, 7, 8, 7]).continuation(5) == (8, 7, 8, 7, 8)


def test_the_window_follows_what_was_kept() -> None:
    """Twice as wide when all was kept, half otherwise, never below one token."""
    seen = accumulate(
        [(2, 2), (4, 4), (8, 3), (4, 0)], lambda w, it: after_copy(w, *it), initial=CopyWindow()
    )
    assert [window.tokens for window in seen] == [2, 4, 8, 4, 2]
    assert after_copy(CopyWindow(tokens=1), 1, 0).tokens == 1


def test_a_window_does_not_outgrow_the_rounds() -> None:
    """Rounds of two drafts leave it at four however long all goes well, so that two poor ones narrow it."""
    window = CopyWindow()
    for _ in range(100):
        window = after_copy(window, 2, 2)
    assert window.tokens == 4
    assert after_copy(CopyWindow(tokens=8), 2, 2).tokens == 8


def test_misses_in_a_row_leave_ever_more_rounds_to_the_drafter() -> None:
    """Doubling up to eight."""
    assert [skipped_rounds(misses) for misses in range(6)] == [0, 1, 2, 4, 8, 8]


def test_one_kept_token_ends_a_row_of_misses() -> None:
    """A copy of which something was kept is none, and is followed by the next at once."""
    missed = after_copy(after_copy(CopyWindow(), 2, 0), 1, 0)
    assert (missed.misses, missed.skip) == (2, 2)
    hit = after_copy(missed, 2, 1)
    assert (hit.misses, hit.skip) == (0, 0)


@pytest.mark.parametrize(("skip", "after"), [(0, 0), (1, 0), (8, 7)])
def test_a_round_of_drafts_is_one_less_to_wait(skip: int, after: int) -> None:
    """Width and misses stay as they are."""
    before = CopyWindow(tokens=4, misses=3, skip=skip)
    assert after_drafts(before) == CopyWindow(tokens=4, misses=3, skip=after)
