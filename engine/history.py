"""One request's drafting history: what the drafter has been told, and what it still has to be told.

Plain and batched steps only note their features; the drafter catches up when it is needed again.
"""

from collections.abc import Sequence

import mlx.core as mx

from speculative.drafter import Drafter, DrafterState


class DraftHistory:
    """A drafter's state for one request and the tokens it has not seen yet."""

    def __init__(self, drafter: Drafter, state: DrafterState | None = None) -> None:
        """`state` continues a stored history, without it the history is empty."""
        self.drafter = drafter
        self.state: DrafterState = drafter.make_state() if state is None else state
        self._tokens: list[int] = []
        self._features: list[mx.array] = []
        # Whether the drafter still has to be told the newest decided token. Rounds tell it themselves.
        self._is_behind = True

    @property
    def can_draft(self) -> bool:
        """Whether there is anything to draft from; not so at the first token of a one-token prompt."""
        return bool(self._tokens) or self.state.waiting is not None or self.state.length > 0

    def note(self, token_id: int, features: mx.array) -> None:
        """A token was fed to the target and gave features [1, 1, F]."""
        self._tokens.append(token_id)
        self._features.append(features)
        self._is_behind = True

    def prime(self, token_ids: Sequence[int], features: mx.array) -> None:
        """A chunk of prompt gave features [1, L, F]."""
        self.drafter.prime(self.state, token_ids, features)

    def catch_up(self, bonus: int) -> None:
        """Tell the drafter everything up to `bonus`, the decided token the target has not been fed."""
        if self._tokens:
            self.drafter.prime(self.state, self._tokens, mx.concatenate(self._features, axis=1))
            self._tokens, self._features = [], []
        if self._is_behind:
            waiting = self.state.waiting
            # A draft model reads tokens only and lets no feature wait.
            self.drafter.extend(self.state, [bonus], mx.zeros((1, 1, 0)) if waiting is None else waiting)
            self._is_behind = False
