"""The split-mtp and fit-drafter commands: what they print and how they exit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--asked-share", "2"], "asked_share is 2.0; legal is 0 to 1"),
        (["--taps", "3,99"], "train.tap_layers is (3, 99); it must ascend and end in 30"),
    ],
)
def test_a_fit_that_cannot_be_is_one_sentence(tmp_path: Path, flags: list[str], said: str) -> None:
    """What a setting or the target rules out exits with code 2, names the legal values and writes nothing."""
    out = tmp_path / "head"
    # A process of its own: the optimised BLAS has to come before MLX, which runs here already.
    command = [sys.executable, "-m", "serve_app", "fit-drafter", "--out", str(out), *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == f"mtp-serve: {said}"
    assert not out.exists()
