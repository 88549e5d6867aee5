"""Keeps verdicts and unfinished profiles in small files; the only input and output of this package.

Reading never raises, writing never leaves half a file, and without a usable directory everything still
works in memory.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from messages.policy import MtpDispatch, Pairing
from policy.evidence import Evidence
from policy.hint import Hint, StoredProfile, is_usable
from policy.key import stem
from policy.machine import Remembered

FOLDER = "mtp-policy"
_MAX_BYTES = 16 << 20
_LONGEST_WRITE_S = 60.0

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
        _remove_abandoned(self._folder)
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
            self._folder.mkdir(parents=True, exist_ok=True)
            _replace(self._folder / f"{name}{suffix}", msgspec.json.format(msgspec.json.encode(stored)))
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


def _remove_abandoned(folder: Path) -> None:
    """Drop what processes killed between writing and renaming have left behind."""
    with contextlib.suppress(OSError):
        for path in folder.glob("*.tmp.*"):
            if _is_abandoned(path):
                path.unlink(missing_ok=True)


def _is_abandoned(temporary: Path) -> bool:
    """Whether the writer is gone, or has had far longer than any write takes: ids are used again."""
    writer = temporary.suffix[1:]
    if time.time() - temporary.stat().st_mtime > _LONGEST_WRITE_S:
        return True
    try:
        os.kill(int(writer), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return True
    except PermissionError:
        return False
    return False


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
