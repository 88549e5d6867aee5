"""One request's copied drafts: its text as far as it is indexed, and how its copies have fared.

Knows neither target nor drafter; what to do with a copy is the lane's business.
"""

from collections.abc import Sequence

from speculative.lookup import CopyWindow, TextIndex, after_copy, after_drafts
from speculative.round import Round


class Copying:
    """Proposes what the text itself suggests comes next."""

    def __init__(self, prompt: Sequence[int]) -> None:
        """Nothing is indexed before the first proposal."""
        self._prompt = prompt
        self._index = TextIndex()
        self._window = CopyWindow()

    def propose(self, generated: Sequence[int], most: int) -> tuple[int, ...]:
        """Up to `most` tokens to follow the prompt and `generated`; none when the drafter is to be asked."""
        if self._window.skip:
            return ()
        read = len(self._index)
        if read < len(self._prompt):
            self._index.extend(self._prompt)
            read = len(self._prompt)
        self._index.extend(generated[read - len(self._prompt) :])
        return self._index.continuation(min(most, self._window.tokens))

    def note(self, done: Round) -> None:
        """Takes in how the latest round went."""
        if done.is_copy:
            self._window = after_copy(self._window, done.drafted, done.accepted)
        else:
            self._window = after_drafts(self._window)
