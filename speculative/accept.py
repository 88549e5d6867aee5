"""The acceptance rule: which drafted tokens the target confirms. Pure values; knows no model, no sampling."""

from collections.abc import Sequence

from msgspec import Struct


class Accepted(Struct, frozen=True):
    """What one verified block yields.

    `count` drafts were confirmed; `emitted` holds them and the token the target adds after the last of them,
    so it has count + 1 entries.
    """

    count: int
    emitted: tuple[int, ...]


def accept(drafted: Sequence[int], picks: Sequence[int]) -> Accepted:
    """Keeps the leading drafts that equal the target's picks (sample-and-match).

    `picks[i]` is the target's token after the bonus token and `drafted[:i]`, so there is one pick more than
    there are drafts. Every emitted token is a pick of the target, whatever was drafted. Raises ValueError
    when the lengths do not fit.
    """
    if len(picks) != len(drafted) + 1:
        raise ValueError(
            f"{len(picks)} picks for {len(drafted)} drafts; there must be one more pick than drafts"
        )
    count = 0
    while count < len(drafted) and drafted[count] == picks[count]:
        count += 1
    return Accepted(count, tuple(picks[: count + 1]))
