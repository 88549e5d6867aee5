"""Keeps verdicts and unfinished profiles in small files; the only input and output of this package.

Reading never raises, writing never leaves half a file, and without a usable directory everything still
works in memory.
"""

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from messages.policy import MtpDispatch, Pairing
from policy.evidence import Evidence
from policy.hint import Hint, StoredProfile, is_usable
from policy.key import stem
from policy.machine import Remembered
from storage import atomic_file

FOLDER = "mtp-policy"
_MAX_BYTES = 16 << 20

Stored = TypeVar("Stored", Hint, StoredProfile)


class StoredHint(Struct, frozen=True):
    """One readable verdict file."""

    stem: str
    hint: Hint


class HintStore:
    """Files under `<root>/mtp-policy`; `root` None keeps nothing.

    Loading also removes temporary files whose writer was killed.
    """

    def __init__(self, root: Path | None) -> None:
        self._folder = None if root is None else root / FOLDER

    def load(self, dispatch: MtpDispatch) -> Remembered:
        """What is known about the pairing; whatever cannot be used counts as nothing."""
        if self._folder is None:
            return Remembered()
        atomic_file.remove_abandoned(self._folder)
        name = stem(dispatch.pairing, dispatch.fingerprint)
        hint = _read(self._folder / f"{name}.json", Hint)
        if hint is not None and is_usable(hint, dispatch):
            return Remembered(hint=hint)
        profile = _read(self._folder / f"{name}.profile.json", StoredProfile)
        if profile is None or not is_usable(profile, dispatch):
            return Remembered()
        return Remembered(evidence=Evidence(profile.samples, profile.probe_means))

    def save(self, stored: Hint | StoredProfile) -> OSError | None:
        """Write atomically with mode 0600; returns the error that prevented it, which costs no verdict.

        A verdict replaces the unfinished profile it came from.
        """
        if self._folder is None:
            return None
        name = _stem_of(stored)
        suffix = ".json" if isinstance(stored, Hint) else ".profile.json"
        try:
            content = msgspec.json.format(msgspec.json.encode(stored))
            atomic_file.write(self._folder / f"{name}{suffix}", content)
            if isinstance(stored, Hint):
                (self._folder / f"{name}.profile.json").unlink(missing_ok=True)
        except OSError as error:
            return error
        return None

    def hints(self) -> tuple[StoredHint, ...]:
        """All readable verdicts, ordered by stem."""
        return tuple(
            StoredHint(path.stem, hint)
            for path in self._files()
            if not path.name.endswith(".profile.json") and (hint := _read(path, Hint)) is not None
        )

    def forget(self, name: str) -> bool:
        """Remove what is stored under a stem; False if there was nothing. Raises OSError if it cannot."""
        found = [path for path in self._files() if path.name in {f"{name}.json", f"{name}.profile.json"}]
        for path in found:
            path.unlink(missing_ok=True)
        return bool(found)

    def _files(self) -> list[Path]:
        if self._folder is None:
            return []
        try:
            return sorted(self._folder.glob("*.json"))
        except OSError:
            return []


def _stem_of(stored: Hint | StoredProfile) -> str:
    pairing = Pairing(
        target=stored.target,
        drafter=stored.drafter,
        hardware=stored.hardware,
        block_size=stored.block_size,
    )
    return stem(pairing, stored.fingerprint)


def _read(path: Path, kind: type[Stored]) -> Stored | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=kind)
    # Whatever is wrong with a cache file must never stop a server from starting.
    except Exception:
        return None
