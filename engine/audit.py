"""The live audit's bookkeeping: which rounds are re-checked, and what was found. Counts, draws nothing.

Knows neither caches nor requests; comparing is `speculative.audit`'s, consequences are the session's.
"""

from speculative.audit import Mismatch


class LiveAudit:
    """Picks a share of all rounds by counting them, the very first one included."""

    def __init__(self, share: float = 0.0) -> None:
        """`share` of rounds, 0 (none) to 1 (all)."""
        self.audited = 0
        self.mismatches = 0
        self._share = share
        self._credit = 1.0 if share else 0.0
        self._found: Mismatch | None = None

    def is_due(self) -> bool:
        """Count a round that is about to run; returns whether it is to be audited."""
        if self._credit < 1:
            self._credit += self._share
            return False
        self._credit += self._share - 1
        return True

    def note(self, found: Mismatch | None) -> None:
        """Count an audited round and keep what was found; a changed token displaces a mere difference."""
        self.audited += 1
        if found is None:
            return
        self.mismatches += 1
        if self._found is None or found.changes_token:
            self._found = found

    def take(self) -> Mismatch | None:
        """What was found since the last call."""
        found, self._found = self._found, None
        return found
