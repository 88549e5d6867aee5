"""Stored verdicts on the command line, with the original rules' answer beside ours."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from policy.hint import Hint, hint_of
from policy.hint_store import HintStore
from policy.machine import Opened, observe
from policy.states import Settled, State, Unavailable
from serve_app.cli import app
from tests.policy.builders import rules, sample

DECLINING = rules(static_default=False)


def stored(root: Path, speedup: float) -> Hint:
    """A verdict on disk, from four requests at this speed-up, where the table says decline."""
    state: State = observe(DECLINING, Unavailable("worker_not_ready"), Opened())
    for _ in range(4):
        state = observe(DECLINING, state, sample(speedup))
    assert isinstance(state, Settled)
    hint = hint_of(DECLINING, state)
    assert HintStore(root).save(hint) is None
    return hint


@pytest.fixture(autouse=True)
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXCEL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


def test_the_list_shows_both_rules(tmp_path: Path) -> None:
    """A gain of 30 % is enabled by measurement and declined by the original's dead band and table."""
    stored(tmp_path, 1.3)
    shown = CliRunner().invoke(app, ["policy", "list"]).stdout
    assert "enable" in shown
    assert "1.30" in shown
    assert "decline (1.30)" in shown


def test_the_json_list_holds_both_rules_numbers(tmp_path: Path) -> None:
    """Verdict and estimate of either, from the same evidence."""
    stored(tmp_path, 1.3)
    (row,) = json.loads(CliRunner().invoke(app, ["policy", "list", "--json"]).stdout)
    figures = row["hint"]["figures"]
    assert (row["hint"]["verdict"], figures["original_verdict"]) == ("enable", "decline")
    assert figures["original_speedup"] == pytest.approx(1.3)
    assert figures["paired"]["speedup"] == pytest.approx(1.3)


def test_nothing_stored_is_said_in_words() -> None:
    """An empty table would say less."""
    assert "no verdict" in CliRunner().invoke(app, ["policy", "list"]).stdout
