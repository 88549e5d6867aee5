"""The split-mtp command: what it prints and how it exits."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from serve_app.cli import app
from speculative.split import CONFIG_FILE
from tests.speculative.qwen_files import random_head, write_original


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["split-mtp", *arguments])


def test_a_head_is_split_and_described(tmp_path: Path) -> None:
    """The command writes the drafter's folder and says what is in it."""
    checkpoint = write_original(tmp_path / "checkpoint", random_head())
    result = run(str(checkpoint), "--out", str(tmp_path / "head"))
    assert result.exit_code == 0
    assert "qwen3_5_mtp, 15 tensors, 0.2 MB" in result.stdout
    assert json.loads((tmp_path / "head" / CONFIG_FILE).read_text())["model_type"] == "qwen3_5_mtp"


def test_a_usage_error_is_one_sentence(tmp_path: Path) -> None:
    """A path that is no checkpoint exits with code 2 and says why."""
    result = run(str(tmp_path / "nowhere"), "--out", str(tmp_path / "head"))
    assert result.exit_code == 2
    assert "is no checkpoint directory" in result.stderr
