"""Settings given on the command line: what is understood, and the sentence for what is not."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from configs.schema import Effective, SettingsError, merge
from serve_app import server
from serve_app.cli import app

LEGAL = "legal: 2 to 16, 0 (the drafter's own) or auto"


@pytest.mark.parametrize(
    ("text", "value"), [("auto", "auto"), ("AUTO", "auto"), ("0", 0), ("2", 2), ("16", 16)]
)
def test_block_sizes_are_numbers_or_auto(
    monkeypatch: pytest.MonkeyPatch, text: str, value: int | str
) -> None:
    """They arrive in the engine's settings, and the flag wins over the environment."""
    seen: list[Effective] = []
    monkeypatch.setattr(server, "run", lambda effective, _address: seen.append(effective) or 0)
    monkeypatch.setenv("MLXCEL_DRAFT_BLOCK_SIZE", "5")
    result = CliRunner().invoke(app, ["serve", "--draft-block-size", text])
    assert result.exit_code == 0
    assert seen[0].settings.engine.draft_block_size == value
    assert seen[0].sources["engine.draft_block_size"] == "flag"


@pytest.mark.parametrize("text", ["1", "17", "-3", "four", "", "4.0", "automatic"])
def test_other_block_sizes_are_refused_in_a_sentence(text: str) -> None:
    """Exit code 2, the value, and what is legal."""
    result = CliRunner().invoke(app, ["serve", "--draft-block-size", text])
    assert result.exit_code == 2
    shown = text if text.isdecimal() else repr(text)
    assert f"draft_block_size (--draft-block-size) is {shown}" in result.stderr
    assert LEGAL in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("Auto", "auto"), ("7", 7)])
def test_the_environment_may_say_auto(text: str, value: int | str) -> None:
    """As the switch always could."""
    settings = merge({}, {"MLXCEL_DRAFT_BLOCK_SIZE": text}).settings
    assert settings.engine.draft_block_size == value


def test_a_settings_file_may_say_auto_and_nothing_else(tmp_path: Path) -> None:
    """A word or number out of range in a file is an error too."""
    assert merge({"engine": {"draft_block_size": "auto"}}, {}).settings.engine.chooses_block_size
    for wrong in ("sometimes", 1, 17, True, 2.5):
        with pytest.raises(SettingsError, match="draft_block_size"):
            merge({"engine": {"draft_block_size": wrong}}, {})
