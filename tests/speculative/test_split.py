"""Splitting heads out of checkpoints: round trips, and clear refusals."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculative.detect import DraftOptions, load_drafter
from speculative.head_weights import read_tensors
from speculative.split import SplitReport, split_head
from tests.speculative import tiny
from tests.speculative.qwen_files import (
    TEXTS,
    as_published,
    parameters,
    prefixed,
    random_head,
    target_config,
    trunk,
    write,
    write_original,
)
from tests.speculative.test_qwen_drafter import proposals

GLM_CONFIG: dict[str, Any] = tiny.GLM_FIELDS | {"model_type": "glm4_moe_lite", "num_nextn_predict_layers": 1}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_split_head_is_the_head_of_the_checkpoint(kind: str, tmp_path: Path) -> None:
    """Splitting keeps every parameter, adds the 1 to norms once, and the folder loads like its source."""
    head = random_head(kind)
    checkpoint = write_original(tmp_path / "checkpoint", head, kind)
    report = split_head(checkpoint, tmp_path / "head")
    wanted = parameters(head)
    got = read_tensors(tmp_path / "head" / "model.safetensors")
    assert got.keys() == wanted.keys()
    assert all(mx.allclose(got[name], wanted[name], atol=1e-6).item() for name in wanted)
    size = sum(array.nbytes for array in wanted.values())
    assert report == SplitReport(
        folder=tmp_path / "head", model_type="qwen3_5_mtp", tensors=len(wanted), size_bytes=size
    )
    target = tiny.target("qwen3_5")
    split, whole = (load_drafter(path, target, DraftOptions()) for path in (tmp_path / "head", checkpoint))
    assert proposals(split) == proposals(whole)


def test_the_folder_describes_the_target(tmp_path: Path) -> None:
    """The configuration carries the target's text settings, the default block size and whether it is tied."""
    config = target_config() | {"tie_word_embeddings": True}
    files = {"model.safetensors": trunk(original=True) | as_published(random_head())}
    split_head(write(tmp_path / "checkpoint", config, files), tmp_path / "new" / "head")
    assert json.loads((tmp_path / "new" / "head" / "config.json").read_text()) == {
        "model_type": "qwen3_5_mtp",
        "block_size": 3,
        "tie_word_embeddings": True,
        "text_config": TEXTS["dense"],
    }


def nextn_layer(prefix: str = "model.layers.2.") -> dict[str, mx.array]:
    names = [
        "enorm.weight",
        "hnorm.weight",
        "eh_proj.weight",
        "shared_head.norm.weight",
        "input_layernorm.weight",
        "self_attn.kv_b_proj.weight",
        "mlp.experts.0.up_proj.weight",
        "mlp.gate.e_score_correction_bias",
        "embed_tokens.weight",
        "shared_head.head.weight",
    ]
    return {prefix + name: mx.full((4, 8), i, dtype=mx.bfloat16) for i, name in enumerate(names)}


def test_a_glm_nextn_layer_is_split_without_its_copies(tmp_path: Path) -> None:
    """The layer after the last one is renamed as split heads are; embedding and output head stay behind."""
    layer = nextn_layer()
    shards = {
        "model-00001-of-00002.safetensors": nextn_layer("model.layers.1.") | dict(list(layer.items())[:3]),
        "model-00002-of-00002.safetensors": nextn_layer("model.layers.20.") | dict(list(layer.items())[3:]),
    }
    report = split_head(write(tmp_path / "checkpoint", GLM_CONFIG, shards), tmp_path / "head")
    got = read_tensors(tmp_path / "head" / "model.safetensors")
    assert {name: array[0, 0].item() for name, array in got.items()} == {
        "model.enorm.weight": 0,
        "model.hnorm.weight": 1,
        "model.eh_proj.weight": 2,
        "model.shared_head_norm.weight": 3,
        "model.mtp_block.input_layernorm.weight": 4,
        "model.mtp_block.self_attn.kv_b_proj.weight": 5,
        "model.mtp_block.mlp.experts.0.up_proj.weight": 6,
        "model.mtp_block.mlp.gate.e_score_correction_bias": 7,
    }
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config == {"model_type": "glm4_moe_lite_mtp", "block_size": 2, "text_config": GLM_CONFIG}
    assert (report.model_type, report.tensors, report.size_bytes) == ("glm4_moe_lite_mtp", 8, 8 * 64)


def repacked() -> dict[str, mx.array]:
    return trunk(original=False) | prefixed(parameters(random_head()), "mtp.")


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        (target_config(), trunk(original=True), r"no tensor is called mtp\.fc\.weight"),
        (GLM_CONFIG, nextn_layer("model.layers.1."), r"no model\.layers\.2\.eh_proj\.weight"),
        ({"model_type": "llama"}, {"a": mx.ones(1)}, "'llama' has no head that can be split"),
        (target_config(), repacked(), "split it from the original"),
    ],
    ids=["Qwen without head", "GLM without head", "other family", "repacked"],
)
def test_checkpoints_without_a_usable_head_are_refused(
    config: dict[str, Any], tensors: dict[str, mx.array], message: str, tmp_path: Path
) -> None:
    """Absent tensors, another family or unknown provenance are errors, and nothing is written."""
    checkpoint = write(tmp_path / "checkpoint", config, {"model.safetensors": tensors})
    with pytest.raises(ValueError, match=message):
        split_head(checkpoint, tmp_path / "head")
    assert not (tmp_path / "head").exists()


def test_existing_models_are_not_overwritten(tmp_path: Path) -> None:
    """The output must not be a model's folder, least of all the checkpoint itself."""
    checkpoint = write_original(tmp_path, random_head())
    with pytest.raises(ValueError, match="already holds a model"):
        split_head(checkpoint, checkpoint)


def test_a_folder_without_configuration_is_no_checkpoint(tmp_path: Path) -> None:
    """A path that is no model's folder is an error naming what it lacks."""
    with pytest.raises(ValueError, match=r"no config\.json"):
        split_head(tmp_path / "nowhere", tmp_path / "head")
