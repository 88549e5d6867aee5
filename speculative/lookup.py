"""Prompt lookup: drafts copied from the text itself, where its newest tokens have occurred before.

Owns the index of a text and how far to trust it. Knows tokens only: no model, no drafter, no request.
"""

from collections.abc import Iterable

from msgspec import Struct

# Numbers of newest tokens that have to match, the surest first.
MATCH_LENGTHS = (3, 2)
FIRST_WINDOW = 2
MOST_SKIPPED = 8


class TextIndex:
    """The tokens of one text, and where each short run of them was last followed by something."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._followed: dict[int, dict[tuple[int, ...], int]] = {length: {} for length in MATCH_LENGTHS}

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens to the text."""
        for token in tokens:
            for length, followed in self._followed.items():
                if len(self._tokens) >= length:
                    followed[tuple(self._tokens[-length:])] = len(self._tokens)
            self._tokens.append(token)

    def continuation(self, count: int) -> tuple[int, ...]:
        """What followed the latest earlier occurrence of the text's end, `count` tokens; empty without one.

        A copy that reaches the end of the text goes on with itself, so a loop is continued.
        """
        for length, followed in self._followed.items():
            start = followed.get(tuple(self._tokens[-length:]))
            if start is not None:
                period = len(self._tokens) - start
                return tuple(self._tokens[start + i % period] for i in range(count))
        return ()


class CopyWindow(Struct, frozen=True, kw_only=True):
    """How many tokens to copy at most, and how many rounds are left without copies.

    `misses` counts copies in a row of which nothing was kept.
    """

    tokens: int = FIRST_WINDOW
    misses: int = 0
    skip: int = 0


def after_copy(window: CopyWindow, copied: int, accepted: int) -> CopyWindow:
    """The window after a round of `copied` tokens: twice as many if all were kept, else half as wide.

    A success never narrows it, and more than twice what rounds have room for it never becomes. After the m-th
    miss in a row 2^(m - 1) rounds are left to the drafter, MOST_SKIPPED at most.
    """
    tokens = max(window.tokens, copied * 2) if accepted >= copied else max(window.tokens // 2, 1)
    misses = 0 if accepted else window.misses + 1
    return CopyWindow(tokens=tokens, misses=misses, skip=skipped_rounds(misses))


def skipped_rounds(misses: int) -> int:
    """Rounds without copies after `misses` copies in a row of which nothing was kept."""
    return min(1 << (misses - 1), MOST_SKIPPED) if misses else 0


def after_drafts(window: CopyWindow) -> CopyWindow:
    """The window after a round that copied nothing."""
    return CopyWindow(tokens=window.tokens, misses=window.misses, skip=max(window.skip - 1, 0))
