"""A written checkpoint is an ordinary one: mlx-lm loads it and computes the same."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import llama
from mlx_lm.utils import load_model

from engine.export import write_checkpoint
from tests import tiny


def model() -> nn.Module:
    """A tiny random llama."""
    mx.random.seed(1)
    return llama.Model(llama.ModelArgs.from_dict(tiny.CONFIG))


def mixed(built: nn.Module) -> nn.Module:
    """The model in 4 bits, with an embedding of 8 bits."""
    nn.quantize(
        built, 32, 4, class_predicate=lambda path, m: hasattr(m, "to_quantized") and "embed" not in path
    )
    nn.quantize(built, 32, 8, class_predicate=lambda path, m: "embed" in path and hasattr(m, "to_quantized"))
    return built


@pytest.mark.parametrize("quantised", [False, True])
def test_what_is_written_loads_and_computes_the_same(tmp_path: Path, quantised: bool) -> None:
    """Float32 weights as they are, and quantised ones with every layer's own number of bits."""
    built = mixed(model()) if quantised else model()
    write_checkpoint(tmp_path / "m", built, tiny.tokenizer_files(), tiny.CONFIG)
    loaded, config = load_model(tmp_path / "m")
    tokens = mx.array([[1, 2, 3, 4]])
    assert mx.array_equal(loaded(tokens), built(tokens))
    assert config["vocab_size"] == tiny.CONFIG["vocab_size"]
    assert (tmp_path / "m" / "tokenizer.json").read_bytes() == tiny.tokenizer_files()["tokenizer.json"]
    assert {path.name for path in tmp_path.iterdir()} == {"m"}


def test_a_checkpoint_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    """Two processes that export at the same time both succeed, and the first one's files are kept."""
    write_checkpoint(tmp_path / "m", model(), {"note": b"first"}, tiny.CONFIG)
    write_checkpoint(tmp_path / "m", model(), {"note": b"second"}, tiny.CONFIG)
    assert (tmp_path / "m" / "note").read_bytes() == b"first"


def test_a_target_that_is_something_else_is_not_overwritten(tmp_path: Path) -> None:
    """A folder with other content raises instead of being taken for a checkpoint."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine").write_text("keep")
    with pytest.raises(OSError, match="m"):
        write_checkpoint(tmp_path / "m", model(), {}, tiny.CONFIG)
    assert (tmp_path / "m" / "mine").read_text() == "keep"
