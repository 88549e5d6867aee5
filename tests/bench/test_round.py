"""The round benchmark: its figures, and a short run on a tiny model."""

from pathlib import Path

import msgspec
from typer.testing import CliRunner

from bench.round_cost import Point, Timing, summary
from serve_app.cli import app
from tests import tiny


def test_ratios_are_taken_turn_by_turn() -> None:
    """A busy moment that slows a whole turn does not look like the cost of a round."""
    timings = (Timing(10.0, 11.0, 15.0, 3.0), Timing(40.0, 44.0, 60.0, 12.0), Timing(10.0, 13.0, 16.0, 4.0))
    point = Point(context=64, timings=timings, cache_bytes=1000, extra_bytes=10)
    (row,) = summary([point], {"exact": True})["contexts"]
    assert (row["verify_ms"], row["round_ms"]) == (10.0, 16.0)
    assert (row["round_per_verify"], row["draft_share"]) == (1.1, 0.2)


def test_a_short_run_on_a_tiny_model(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A table, and as the last line the figures of every context, the conditions with them."""
    head = tiny.write_head(tmp_path / "head")
    options = ["--context", "16", "--context", "300", "--turns", "2"]
    result = CliRunner().invoke(
        app,
        ["bench", "round", "--model", str(tiny_checkpoint), "--model-draft", str(head), *options],
        env={"MLXCEL_CACHE_DIR": str(tmp_path)},
    )
    assert result.exit_code == 0, result.output
    *table, last = result.stdout.strip().splitlines()
    assert any("300" in line for line in table)
    assert "model_ready" not in result.stdout
    figures = msgspec.json.decode(last)
    assert [row["context"] for row in figures["contexts"]] == [16, 300]
    for row in figures["contexts"]:
        # No bound from above: the tiny model's forward is shorter than a scheduler's slice.
        assert row["round_per_verify"] > 0.5
        assert 0 < row["draft_share"] < 1
        # Two layers of keys and values, two heads of eight numbers, at least as long as the context.
        assert row["cache_bytes"] >= 2 * 2 * 2 * 8 * 4 * row["context"]
    assert figures["exact"] is True


def test_a_model_without_drafter_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """One sentence, exit code 1."""
    result = CliRunner().invoke(
        app, ["bench", "round", "--model", str(tiny_checkpoint)], env={"MLXCEL_CACHE_DIR": str(tmp_path)}
    )
    assert result.exit_code == 1
    assert "has no drafter" in result.output
