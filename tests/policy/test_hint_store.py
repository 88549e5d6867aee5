"""Persisted verdicts: where they lie, what they hold, and that nothing about files can hurt."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages.policy import MtpDispatch
from policy.evidence import Evidence
from policy.hint import Hint, StoredProfile, hint_of, profile_of
from policy.hint_store import HintStore
from policy.key import original_stem, stem
from policy.machine import NOTHING, Opened, observe
from policy.states import Profiling, Settled, State
from tests.policy.builders import EXACT, dispatch, rules, sample

RULES = rules()
KNOWN = RULES.dispatch
NAME = stem(KNOWN.pairing, KNOWN.fingerprint)
# No process has this id.
DEAD = 2**31 - 1


def hint(speedup: float = 1.8) -> Hint:
    """A measured verdict of the known pairing."""
    state: State = observe(RULES, observe(RULES, Profiling(), Opened()), EXACT)
    for _ in range(4):
        state = observe(RULES, state, sample(speedup, at_s=1700000000.0))
    assert isinstance(state, Settled)
    return hint_of(RULES, state)


def profile(samples: int = 3) -> StoredProfile:
    """An unfinished profile of the known pairing."""
    return profile_of(KNOWN, Evidence(tuple(sample() for _ in range(samples)), (40.0,)))


def files(root: Path) -> set[str]:
    """Names below the store's folder."""
    return {path.name for path in (root / "mtp-policy").iterdir()}


def test_a_verdict_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Every field survives, and the file is named after the key in the documented folder."""
    assert HintStore(tmp_path).save(hint()) is None
    assert files(tmp_path) == {f"{NAME}.json"}
    assert HintStore(tmp_path).load(KNOWN).hint == hint()


def test_the_original_file_of_the_same_pairing_is_left_alone(tmp_path: Path) -> None:
    """Another program's verdict is neither read nor overwritten."""
    theirs = tmp_path / "mtp-policy" / f"{original_stem(KNOWN.pairing)}.json"
    theirs.parent.mkdir()
    theirs.write_text('{"version": 3}')
    assert HintStore(tmp_path).load(KNOWN) == NOTHING
    HintStore(tmp_path).save(hint())
    assert theirs.read_text() == '{"version": 3}'


def test_the_body_holds_the_original_fields_and_no_request_data(tmp_path: Path) -> None:
    """Verdict, two-decimal rate, count, identity and version as ever; the rest says how it was measured."""
    HintStore(tmp_path).save(hint())
    body = json.loads((tmp_path / "mtp-policy" / f"{NAME}.json").read_text())
    original = {
        "version",
        "target",
        "drafter",
        "hardware",
        "block_size",
        "verdict",
        "acceptance_rate",
        "samples",
    }
    assert set(body) == original | {"fingerprint", "rule", "settled_at", "figures"}
    assert (body["verdict"], body["acceptance_rate"], body["samples"]) == ("enable", 0.67, 4)
    assert set(body["figures"]) == {
        "rounds",
        "paired",
        "positions",
        "per_round",
        "original_speedup",
        "original_verdict",
        "classes",
    }


def test_files_are_private(tmp_path: Path) -> None:
    """Mode 0600, also when a looser temporary file was left behind."""
    folder = tmp_path / "mtp-policy"
    folder.mkdir()
    left = folder / f"{NAME}.json.tmp.{os.getpid()}"
    left.write_text("old")
    left.chmod(0o644)
    HintStore(tmp_path).save(hint())
    assert stat.S_IMODE((folder / f"{NAME}.json").stat().st_mode) == 0o600
    assert files(tmp_path) == {f"{NAME}.json"}


def test_a_verdict_replaces_the_profile_it_came_from(tmp_path: Path) -> None:
    """The unfinished profile is kept until then, and only until then."""
    store = HintStore(tmp_path)
    store.save(profile())
    assert len(store.load(KNOWN).evidence.samples) == 3
    store.save(hint())
    assert files(tmp_path) == {f"{NAME}.json"}


def test_a_failed_rename_leaves_no_temporary_file(tmp_path: Path) -> None:
    """The error is returned, not raised, and the directory stays clean."""
    blocking = tmp_path / "mtp-policy" / f"{NAME}.json"
    (blocking / "occupied").mkdir(parents=True)
    assert isinstance(HintStore(tmp_path).save(hint()), OSError)
    assert files(tmp_path) == {f"{NAME}.json"}
    assert HintStore(tmp_path).load(KNOWN) == NOTHING


def test_an_interrupted_write_keeps_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up while writing costs the new verdict on disk, never the old one."""

    def full(_descriptor: int) -> None:
        raise OSError("no space left")

    store = HintStore(tmp_path)
    store.save(hint(1.8))
    monkeypatch.setattr(os, "fsync", full)
    assert isinstance(store.save(hint(0.7)), OSError)
    assert files(tmp_path) == {f"{NAME}.json"}
    assert (found := store.load(KNOWN).hint) is not None
    assert found.verdict == "enable"


@pytest.mark.parametrize("root", [None, Path("/proc/nowhere"), Path(__file__)])
def test_without_a_usable_root_everything_is_merely_forgotten(root: Path | None) -> None:
    """No root, one that cannot be made, or one that is a file: loading finds nothing, saving says why."""
    store = HintStore(root)
    assert (store.save(hint()) is None) == (root is None)
    assert store.load(KNOWN) == NOTHING
    assert store.hints() == ()
    assert store.forget(NAME) is False


@pytest.mark.parametrize(
    "other",
    [
        dispatch(target="x"),
        dispatch(drafter="x"),
        dispatch(block_size=5),
        dispatch(fingerprint="x"),
        msgspec.structs.replace(KNOWN, pairing=msgspec.structs.replace(KNOWN.pairing, hardware="M5-40c")),
    ],
)
def test_a_file_of_another_pairing_is_not_believed(tmp_path: Path, other: MtpDispatch) -> None:
    """Even under the right name each part of the identity is checked; the old file stays."""
    store = HintStore(tmp_path)
    for stored, suffix in ((hint(), ".json"), (profile(), ".profile.json")):
        store.save(stored)
        name = stem(other.pairing, other.fingerprint)
        mine = tmp_path / "mtp-policy" / f"{NAME}{suffix}"
        (tmp_path / "mtp-policy" / f"{name}{suffix}").write_bytes(mine.read_bytes())
        assert store.load(other) == NOTHING
        assert mine.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"verdict": "maybe"},
        {"acceptance_rate": 1.5},
        {"acceptance_rate": -0.1},
        {"acceptance_rate": None},
        {"samples": 0},
        {"settled_at": "yesterday"},
        {"figures": {"paired": {"speedup": -1}}},
        {"figures": {"positions": [2.0]}},
    ],
)
def test_an_impossible_body_is_not_believed(tmp_path: Path, change: dict[str, object]) -> None:
    """Wrong version, unknown labels and numbers out of range count as no file."""
    store = HintStore(tmp_path)
    store.save(hint())
    path = tmp_path / "mtp-policy" / f"{NAME}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert store.load(KNOWN) == NOTHING


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b"null", b'"x"', b"[" * 100_000, b"\xff\xfe"])
def test_garbage_is_not_believed(tmp_path: Path, content: bytes) -> None:
    """Empty, torn, nested beyond reason or not text at all."""
    (tmp_path / "mtp-policy").mkdir()
    for suffix in (".json", ".profile.json"):
        (tmp_path / "mtp-policy" / f"{NAME}{suffix}").write_bytes(content)
    assert HintStore(tmp_path).load(KNOWN) == NOTHING
    assert HintStore(tmp_path).hints() == ()


@given(st.binary(max_size=60), st.integers(0, 2000), st.sampled_from([hint(), profile()]))
def test_loading_a_damaged_file_never_raises(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int, stored: Hint | StoredProfile
) -> None:
    """Whatever bytes a file holds, the answer is what was written or nothing that contradicts its checks."""
    root = tmp_path_factory.mktemp("damaged")
    store = HintStore(root)
    store.save(stored)
    (path,) = (root / "mtp-policy").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
    found = store.load(KNOWN)
    assert found.hint is None or 0 <= found.hint.acceptance_rate <= 1


def test_stored_verdicts_can_be_listed_and_forgotten(tmp_path: Path) -> None:
    """The list names stem and verdict; forgetting removes verdict and profile of that stem alone."""
    store = HintStore(tmp_path)
    store.save(hint())
    other = msgspec.structs.replace(hint(), fingerprint="other")
    store.save(other)
    store.save(profile())
    assert {found.stem: found.hint for found in store.hints()} == {
        NAME: hint(),
        stem(KNOWN.pairing, "other"): other,
    }
    assert store.forget(NAME) is True
    assert store.load(KNOWN) == NOTHING
    assert [found.hint for found in store.hints()] == [other]
    assert store.forget(NAME) is False


def test_temporary_files_of_killed_writers_are_removed_at_load(tmp_path: Path) -> None:
    """Also one that holds a whole verdict: it was never in force, and is not believed."""
    store = HintStore(tmp_path)
    store.save(hint(0.7))
    left = tmp_path / "mtp-policy" / f"{NAME}.json.tmp.{DEAD}"
    left.write_bytes(msgspec.json.encode(hint(1.8)))
    assert store.load(KNOWN).hint == hint(0.7)
    assert files(tmp_path) == {f"{NAME}.json"}


SAVE_FOR_EVER = """
import sys
from pathlib import Path
from policy.hint_store import HintStore
from tests.policy.test_hint_store import hint
store, both = HintStore(Path(sys.argv[1])), (hint(1.8), hint(0.7))
while True:
    for each in both:
        store.save(each)
        print(flush=True)
"""


def test_a_process_killed_while_saving_leaves_a_whole_verdict(tmp_path: Path) -> None:
    """SIGKILL at any write: the file holds the former verdict or the new one, never a torn one."""
    for saves in (1, 2, 5, 11):
        command = [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(saves):
                process.stdout.readline()
            process.kill()
        assert HintStore(tmp_path).load(KNOWN).hint in {hint(1.8), hint(0.7)}
        assert files(tmp_path) == {f"{NAME}.json"}
