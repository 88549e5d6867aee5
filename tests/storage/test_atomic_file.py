"""Files written whole or not at all, and what killed writers leave behind."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage import atomic_file


def test_a_write_makes_the_folder_and_leaves_one_private_file(tmp_path: Path) -> None:
    """The second write replaces the first; a looser temporary file left by the same id does no harm."""
    path = tmp_path / "new" / "a.json"
    atomic_file.write(path, b"first")
    left = path.with_name(f"a.json.tmp.{os.getpid()}")
    left.write_text("something longer than what comes next")
    left.chmod(0o644)
    atomic_file.write(path, b"second")
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_keeps_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is an error for the caller, and leaves neither half a file nor a temporary one."""

    def full(_descriptor: int) -> None:
        raise OSError("no space left")

    path = tmp_path / "a.json"
    atomic_file.write(path, b"former")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        atomic_file.write(path, b"newer")
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("writer", "age_s", "stays"),
    [("dead", 0, False), ("alive", 0, True), ("alive", 3600, False), ("nobody", 0, False)],
)
def test_temporary_files_of_killed_writers_are_removed(
    tmp_path: Path, writer: str, age_s: float, stays: bool
) -> None:
    """A file whose writer is gone, or that is far too old, goes; one being written stays; others do."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    ids = {"dead": ended.pid, "alive": os.getpid(), "nobody": "x"}
    kept, left = tmp_path / "a.json", tmp_path / f"a.json.tmp.{ids[writer]}"
    for path in (kept, left):
        path.write_text("{")
        os.utime(path, (time.time() - age_s,) * 2)
    atomic_file.remove_abandoned(tmp_path)
    assert set(tmp_path.iterdir()) == {kept, *([left] if stays else [])}


def test_cleaning_a_folder_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    """A first start has nothing to clean."""
    atomic_file.remove_abandoned(tmp_path / "nowhere")
