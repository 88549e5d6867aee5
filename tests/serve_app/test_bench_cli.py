"""The bench commands: what they print, what they write and how they exit."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner, Result

from serve_app.cli import app
from tests.bench.fake_server import serving
from tests.bench.test_speculation_run import SETTLED, server


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """The commands end on SIGTERM their own way; the tests do not keep it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def bench(*arguments: str) -> Result:
    """Run a bench command in this process."""
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_last_line_is_one_object_below_the_tables(tmp_path: Path) -> None:
    """People read tables, programs the end; the plot is an SVG."""
    plot = tmp_path / "speedup.svg"
    with serving(server(SETTLED)) as url:
        result = bench("speculation", "--url", url, "--prompts", "2", "--tokens", "8", "--plot", str(plot))
    assert result.exit_code == 0, result.output
    assert "Speculation against plain decoding" in result.stdout
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["prompts"], figures["identical"]) == (2, True)
    assert ET.parse(plot).getroot().tag.endswith("svg")


def test_json_leaves_everything_else_away() -> None:
    """Not even progress is printed."""
    with serving(server(SETTLED)) as url:
        result = bench("speculation", "--url", url, "--prompts", "1", "--tokens", "8", "--json")
    assert len(result.output.splitlines()) == 1
    assert "speedup_median" in json.loads(result.output)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("policy", "--pairing", "bf16"), "'bf16' is not known; legal: float32, 4bit"),
        (("policy", "--plot", "/nowhere/at/all.svg"), "/nowhere/at/all.svg"),
        (("speculation", "--plot", "/"), "is a folder"),
        (("speculation", "--url", "http://127.0.0.1:1", "--", "--threads", "1"), "exclude --url"),
    ],
)
def test_a_usage_error_is_one_sentence_before_anything_is_measured(
    arguments: tuple[str, ...], expected: str
) -> None:
    """Exit code 2, with the value that is wrong."""
    result = bench(*arguments)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_a_server_that_cannot_be_measured_is_one_sentence() -> None:
    """Exit code 1 and no traceback."""
    with serving(server(SETTLED | {"reason": "no_mtp_dispatch"})) as url:
        result = bench("speculation", "--url", url)
    assert result.exit_code == 1
    assert "has no drafter" in result.stderr
