"""The benchmark of speculation on a real server with a tiny model and a random head."""

from pathlib import Path
from typing import Any

import pytest

from bench import speculation, speculation_run
from tests import tiny
from tests.bench.test_speculation_run import Steps

pytestmark = [pytest.mark.serve, pytest.mark.slow]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for the tiny model."""
    return tiny.write_head(tmp_path_factory.mktemp("tiny") / "tiny-head")


def test_speculation_on_a_server_started_for_it(
    tiny_checkpoint: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts agree, and counters and times come from the answers themselves."""
    monkeypatch.setenv("MLXCEL_CACHE_DIR", str(tmp_path))
    options = ("--model", str(tiny_checkpoint), "--model-draft", str(head))
    pairs, policy = speculation_run.measure(
        speculation_run.Plan(tokens=32, prompts=2, serve_options=options), Steps()
    )
    figures: dict[str, Any] = speculation.summary(pairs, policy, 32)
    assert figures["identical"]
    assert figures["not_speculated"] == []
    assert len(figures["acceptance_per_position"]) == 3
    assert figures["limit_basis"] == "rounds"
    assert 0 < figures["drafter_share"] < 1
