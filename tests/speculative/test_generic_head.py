"""The generic head as a network and as files."""

from pathlib import Path

import mlx.core as mx
import pytest

from speculative.generic_head import (
    GenericHead,
    GenericHeadConfig,
    HeadFiles,
    load_generic_head,
    save_generic_head,
)
from speculative.head_weights import quantise_head


def tiny_config(**changes: object) -> GenericHeadConfig:
    fields: dict[str, object] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 50,
    }
    return GenericHeadConfig(**(fields | changes))  # pyright: ignore[reportArgumentType]


def pairs(length: int, config: GenericHeadConfig) -> tuple[mx.array, mx.array]:
    keys = mx.random.split(mx.random.key(3), 2)
    width = config.hidden_size
    taps = max(1, len(config.tap_layers))
    return (
        mx.random.normal((1, length, width), key=keys[0]),
        mx.random.normal((1, length, taps * width), key=keys[1]),
    )


def test_cached_steps_equal_one_pass() -> None:
    """Feeding pairs one by one through the head's cache gives what one pass over all of them gives."""
    config = tiny_config(num_layers=2)
    head = GenericHead(config)
    embeddings, hiddens = pairs(5, config)
    whole = head(embeddings, hiddens)
    cache = head.make_cache()
    steps = [head(embeddings[:, i : i + 1], hiddens[:, i : i + 1], cache) for i in range(5)]
    assert mx.allclose(whole, mx.concatenate(steps, axis=1), atol=1e-5).item()
    assert [c.offset for c in cache] == [5, 5]


def test_taps_are_fused_to_one_hidden() -> None:
    """A head reading several target layers projects their concatenation to the hidden size."""
    config = tiny_config(tap_layers=(0, 2, 3))
    _, taps = pairs(4, config)
    assert taps.shape == (1, 4, 192)
    assert GenericHead(config).fuse(taps).shape == (1, 4, 64)


def test_default_tap_passes_through() -> None:
    """Without tap layers the hidden after the final norm is read as it is."""
    config = tiny_config()
    _, hiddens = pairs(4, config)
    assert GenericHead(config).fuse(hiddens) is hiddens


@pytest.mark.parametrize("bits", [None, 4])
def test_files_round_trip(tmp_path: Path, bits: int | None) -> None:
    """A saved head loads to the same outputs, configuration and draft vocabulary, quantised or not."""
    config = tiny_config(draft_vocab_size=3, tap_layers=(1, 2))
    head = GenericHead(config)
    if bits:
        quantise_head(head, bits, group_size=32)
    save_generic_head(tmp_path / "head", HeadFiles(head, config, mx.array([7, 1, 49])))
    loaded = load_generic_head(tmp_path / "head")
    embeddings, taps = pairs(3, config)
    assert loaded.config == config
    assert loaded.draft_vocab is not None
    assert loaded.draft_vocab.tolist() == [7, 1, 49]
    assert loaded.draft_vocab.dtype == mx.int32
    wanted, got = head(embeddings, head.fuse(taps)), loaded.head(embeddings, loaded.head.fuse(taps))
    assert mx.array_equal(wanted, got).item()


def test_embedding_and_output_head_are_not_stored(tmp_path: Path) -> None:
    """The file holds no tensor of the vocabulary's size."""
    config = tiny_config()
    save_generic_head(tmp_path, HeadFiles(GenericHead(config), config, None))
    tensors = mx.load(str(tmp_path / "model.safetensors"))
    assert all(config.vocab_size not in array.shape for array in tensors.values())


@pytest.mark.parametrize(
    ("draft_vocab", "message"),
    [([1, 2], "2 ids"), ([1, 1, 2], "distinct"), ([1, 2, 50], "legal is 0 to 49"), (None, "None ids")],
)
def test_bad_draft_vocabulary_is_refused(tmp_path: Path, draft_vocab: list[int] | None, message: str) -> None:
    """A list of the wrong length, with repeats or with ids outside the vocabulary is an error."""
    config = tiny_config(draft_vocab_size=3)
    ids = None if draft_vocab is None else mx.array(draft_vocab)
    with pytest.raises(ValueError, match=message):
        save_generic_head(tmp_path, HeadFiles(GenericHead(config), config, ids))


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    """Loading a file that lacks a tensor raises an error naming it."""
    config = tiny_config()
    save_generic_head(tmp_path, HeadFiles(GenericHead(config), config, None))
    path = str(tmp_path / "model.safetensors")
    tensors = dict(mx.load(path))
    del tensors["fc.weight"]
    mx.eval(tensors)
    mx.save_safetensors(path, tensors)
    with pytest.raises(ValueError, match=r"fc\.weight"):
        load_generic_head(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 3},
        {"hidden_size": 66},
        {"block_size": 1},
        {"draft_vocab_size": 51},
        {"model_type": "llama"},
        {"tap_layers": (-1,)},
        {"num_layers": 0},
    ],
)
def test_illegal_geometry_is_refused(changes: dict[str, object]) -> None:
    """A configuration outside the legal ranges cannot be made."""
    with pytest.raises(ValueError, match=next(iter(changes)).replace("hidden_size", "num_attention_heads")):
        tiny_config(**changes)
