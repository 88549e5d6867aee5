"""A Gemma 4 assistant's files and configuration."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from speculative.detect import DraftOptions, load_drafter
from speculative.gemma_assistant import Assistant
from speculative.gemma_drafter import GemmaDrafter, load_gemma_drafter
from speculative.head_weights import quantise_head
from tests.speculative import tiny
from tests.speculative.decoding import PROMPTS, generate, plain, start
from tests.speculative.family_heads import CLUSTERS, assistant, assistant_fields, save


def tensors_of(model: Assistant) -> dict[str, mx.array]:
    """The tensors as published: ids as 64-bit integers, the tied output head written out."""
    tensors: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    name = "masked_embedding.token_ordering"
    if name in tensors:
        tensors[name] = tensors[name].astype(mx.int64)
    return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}


@pytest.mark.parametrize("model_type", ["gemma4_assistant", "gemma4_unified_assistant"])
@pytest.mark.parametrize("clusters", [{}, CLUSTERS], ids=["dense", "ordered"])
def test_folders_load(tmp_path: Path, model_type: str, clusters: dict[str, Any]) -> None:
    """A published folder of either kind proposes what the assistant it was made from proposes."""
    model, config = assistant(**clusters)
    save(tmp_path, assistant_fields(model_type=model_type, **clusters), tensors_of(model))
    target, made = tiny.target("gemma4"), GemmaDrafter(model, config)
    made.bind(target)
    loaded = load_drafter(tmp_path, target, DraftOptions(kind="mtp"))
    assert (loaded.kind, loaded.block_size) == ("mtp", 4)
    burst, _ = start(target, PROMPTS["past the window"], made)
    proposals = [d.draft(burst.state, 5, burst.caches) for d in (made, loaded)]
    assert tiny.same_bytes(*proposals)
    assert proposals[0].dtype == mx.int32
    assert proposals[0].shape == (5,)


def test_quantised_folders_load(tmp_path: Path) -> None:
    """Stored packed or packed at load, clusters included, the text stays the target's."""
    target, prompt = tiny.target("gemma4"), PROMPTS["past the window"]
    model, _ = assistant(**CLUSTERS)
    fields = assistant_fields(**CLUSTERS)
    at_load = load_gemma_drafter(save(tmp_path, fields, tensors_of(model)), mx.float32, bits=8)
    quantise_head(model, 8, group_size=32)
    stored = load_gemma_drafter(save(tmp_path, fields, tensors_of(model)), mx.float32)
    for drafter in (at_load, stored):
        drafter.bind(target)
        assert generate(target, prompt, 8, drafter, depth=3).tokens == plain(target, prompt, 8).tokens


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 1}, "block_size is 1"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is false"),
        (CLUSTERS | {"num_centroids": 7}, "num_centroids is 7; it must divide vocab_size"),
        (CLUSTERS | {"centroid_intermediate_top_k": 9}, "top_k is 9; legal is 1 to 8"),
    ],
)
def test_illegal_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    """A configuration outside the legal ranges cannot be made."""
    with pytest.raises(ValueError, match=message):
        assistant(**changes)
