"""Probe results on disk, one small file per fingerprint, so that a restart need not probe again."""

from pathlib import Path

import msgspec
from msgspec import Struct

from speculative.probe import ProbeResult
from speculative.selection import DEFAULT
from speculative.verify_cost import VerifyCost
from storage import atomic_file

_FOLDER = "mtp-probe"


class StoredProbe(Struct, frozen=True, kw_only=True):
    """A probe's result and what was timed along with it; `draft_step_ms` None when the drafter failed."""

    result: ProbeResult
    draft_step_ms: float | None


class ProbeStore:
    """Reads never raise and writes may be lost: probing again is always right.

    Loading also removes temporary files whose writer was killed.
    """

    def __init__(self, cache_root: Path) -> None:
        self._folder = cache_root / _FOLDER

    def load(self, fingerprint: str) -> StoredProbe | None:
        """The stored result, None when there is none that can be read."""
        atomic_file.remove_abandoned(self._folder)
        try:
            return msgspec.json.decode(self._path(fingerprint).read_bytes(), type=StoredProbe)
        except (OSError, msgspec.MsgspecError):
            return None

    def save(self, fingerprint: str, stored: StoredProbe) -> OSError | None:
        """Store it atomically with mode 0600; returns what prevented it."""
        try:
            content = msgspec.json.format(msgspec.json.encode(stored))
            atomic_file.write(self._path(fingerprint), content)
        except OSError as error:
            return error
        return None

    def refute(self, fingerprint: str, detail: str) -> OSError | None:
        """Store that what the probe found is not exact after all, so that no restart takes its word."""
        refuted = ProbeResult(
            exact=False,
            selection=DEFAULT,
            detail=detail,
            attempts=(),
            verify_cost=VerifyCost(plain_ms=0.0, rows_ms=()),
            duration_ms=0.0,
        )
        return self.save(fingerprint, StoredProbe(result=refuted, draft_step_ms=None))

    def _path(self, fingerprint: str) -> Path:
        return self._folder / f"{fingerprint}.json"
