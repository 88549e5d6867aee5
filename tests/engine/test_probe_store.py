"""Stored probe results: what comes back, and that nothing about files can hurt."""

from pathlib import Path

import pytest

from engine.probe_store import ProbeStore

# No process has this id.
DEAD = 2**31 - 1


def test_temporary_files_of_killed_writers_are_removed_at_load(tmp_path: Path) -> None:
    """What was stored comes back, and what a killed writer left is gone."""
    store = ProbeStore(tmp_path)
    assert store.refute("a", "they differ.") is None
    left = tmp_path / "mtp-probe" / f"a.json.tmp.{DEAD}"
    left.write_text("{")
    found = store.load("a")
    assert found is not None
    assert (found.result.exact, found.result.detail) == (False, "they differ.")
    assert [path.name for path in (tmp_path / "mtp-probe").iterdir()] == ["a.json"]


def test_a_failed_rename_leaves_no_temporary_file(tmp_path: Path) -> None:
    """The error is returned, not raised, and the folder stays clean."""
    blocking = tmp_path / "mtp-probe" / "a.json"
    (blocking / "occupied").mkdir(parents=True)
    store = ProbeStore(tmp_path)
    assert isinstance(store.refute("a", "they differ."), OSError)
    assert list(blocking.parent.iterdir()) == [blocking]
    assert store.load("a") is None


@pytest.mark.parametrize("root", [Path("/proc/nowhere"), Path(__file__)])
def test_without_a_usable_root_everything_is_merely_forgotten(root: Path) -> None:
    """A root that cannot be made, or is a file: loading finds nothing, saving says why."""
    store = ProbeStore(root)
    assert isinstance(store.refute("a", "they differ."), OSError)
    assert store.load("a") is None
