"""Qwen heads from every layout on disk, and rounds with them against plain decode."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from speculative import qwen_drafter as module
from speculative.chained_head import ChainedHeadDrafter
from speculative.detect import DraftOptions, load_drafter
from speculative.drafter import Drafter
from speculative.head_weights import quantise_head
from speculative.model_drafter import ModelDrafter
from speculative.qwen_drafter import load_qwen_drafter, qwen_drafter
from speculative.qwen_head import MODEL_TYPE, QwenHead, head_config
from speculative.qwen_layouts import SIDE_FILES, find_head
from speculative.rollback import clone_caches
from speculative.round import Burst, run_round
from speculative.selection import AppliedSelection, Selection
from speculative.target import Target
from tests.speculative import tiny
from tests.speculative.decoding import greedy, plain, start
from tests.speculative.drafters import perfect, random_drafter, scripted
from tests.speculative.qwen_files import (
    TEXTS,
    as_published,
    config_of,
    parameters,
    prefixed,
    random_head,
    target_config,
    transparent_head,
    transparent_target,
    trunk,
    with_single_experts,
    write,
    write_original,
    zero_centred,
)

PROMPT = tiny.prompt(11)
LENGTH = 13
AUTO = DraftOptions()
SPLIT_CONFIG = {"model_type": MODEL_TYPE, "text_config": TEXTS["dense"], "block_size": 4}


def proposals(drafter: Drafter, target: Target | None = None, depth: int = 3) -> list[int]:
    """What a bound drafter proposes after a fixed text."""
    target = target or tiny.target("qwen3_5")
    state = drafter.make_state()
    features = target.forward(mx.array([PROMPT]), target.make_cache()).features
    drafter.prime(state, PROMPT, features)
    drafter.extend(state, [5], features[:, -1:])
    return [int(i) for i in drafter.draft(state, depth, []).tolist()]  # pyright: ignore[reportArgumentType,reportGeneralTypeIssues]


@cache
def wanted(kind: str = "dense") -> list[int]:
    drafter = qwen_drafter(random_head(kind), config_of(kind))
    drafter.bind(tiny.target("qwen3_5"))
    return proposals(drafter)


@cache
def exact_target() -> Target:
    """A hybrid target whose K-row forwards have the bytes of single steps."""
    target = Target(tiny.qwen3_5_model())
    AppliedSelection(target, Selection(name="row_invariant", attention="row"))
    return target


@cache
def reference() -> tuple[list[int], list[list[Any]]]:
    """Plain decode: the tokens, and copies of the caches after every one of them."""
    burst, _ = start(exact_target(), PROMPT, None)
    tokens, snapshots = [burst.bonus], [clone_caches(burst.caches)]
    while len(tokens) < LENGTH + 6:
        done = run_round(burst, 0, greedy)
        tokens += done.emitted
        burst = after(burst, done.bonus, len(tokens))
        snapshots.append(clone_caches(burst.caches))
    return tokens, snapshots


def after(burst: Burst, bonus: int, position: int) -> Burst:
    return Burst(
        target=burst.target, caches=burst.caches, bonus=bonus, position=position, drafter=burst.drafter,
        state=burst.state,
    )  # fmt: skip


def real() -> Drafter:
    drafter = qwen_drafter(random_head(), config_of())
    drafter.bind(exact_target())
    return drafter


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "real head": real,
    "perfect": lambda: perfect(reference()[0]),
    "random": random_drafter,
    "scripted": lambda: scripted(reference()[0]),
}


@pytest.mark.parametrize("block_size", [2, 4, 6])
@pytest.mark.parametrize("name", DRAFTERS)
def test_rounds_leave_what_plain_decode_leaves(name: str, block_size: int) -> None:
    """Whatever is proposed, after every round tokens and cache bytes are those of token-by-token decode."""
    tokens, snapshots = reference()
    burst, _ = start(exact_target(), PROMPT, DRAFTERS[name]())
    emitted = [burst.bonus]
    while len(emitted) < LENGTH:
        done = run_round(burst, block_size - 1, greedy)
        assert done.drafter_error is None
        emitted += done.emitted
        burst = after(burst, done.bonus, len(emitted))
        assert emitted == tokens[: len(emitted)]
        assert tiny.largest_difference(burst.caches, snapshots[len(emitted) - 1]) == 0.0


def split(folder: Path) -> Path:
    return write(folder, SPLIT_CONFIG, {"model.safetensors": parameters(random_head())})


def shards(folder: Path) -> Path:
    return write_original(folder, random_head())


def moe_shards(folder: Path) -> Path:
    return write_original(folder, random_head("moe"), "moe")


def next_shard(folder: Path) -> Path:
    tensors = with_single_experts(random_head("next"))
    return write(folder, target_config("next"), {"model.safetensors": trunk(original=True) | tensors})


def converted_shard(folder: Path) -> Path:
    tensors = prefixed(parameters(random_head()), "language_model.mtp.")
    return write(folder, target_config(), {"model.safetensors": trunk(original=False) | tensors})


def marked_shard(folder: Path) -> Path:
    tensors = prefixed(parameters(random_head()), "mtp.")
    files = {"model.safetensors": trunk(original=False) | tensors}
    return write(folder, target_config(), files, {"format": "mlx"})


def side_file(name: str, prefix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        files = {
            "model.safetensors": trunk(original=False),
            name: prefixed(parameters(random_head()), prefix),
        }
        return write(folder, target_config(), files, {"format": "mlx"})

    return make


LAYOUTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "split folder": (split, "dense"),
    "original shards": (shards, "dense"),
    "original MoE shards": (moe_shards, "moe"),
    "Qwen3-Next": (next_shard, "next"),
    "language_model prefix": (converted_shard, "dense"),
    "converted shard": (marked_shard, "dense"),
    **{
        f"{name} {prefix}": (side_file(name, prefix), "dense")
        for name in SIDE_FILES
        for prefix in ("mtp.", "")
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_loads_to_the_same_drafter(layout: str, tmp_path: Path) -> None:
    """Wherever a head's tensors are and however they are stored, it proposes what the head in memory does."""
    make, kind = LAYOUTS[layout]
    drafter = load_drafter(make(tmp_path), tiny.target("qwen3_5"), AUTO)
    assert isinstance(drafter, ChainedHeadDrafter)
    assert proposals(drafter) == wanted(kind)
    assert drafter.block_size == (4 if layout == "split folder" else 3)


@pytest.mark.parametrize(
    ("make", "zero_centred"),
    [
        (split, False),
        (shards, True),
        (next_shard, True),
        (converted_shard, False),
        (marked_shard, False),
        (side_file("mtp.safetensors", "mtp."), False),
    ],
)
def test_provenance_says_whether_norms_are_zero_centred(
    make: Callable[[Path], Path], zero_centred: bool, tmp_path: Path
) -> None:
    """Original shards are zero-centred; split folders, conversions and marked files are not."""
    folder = make(tmp_path)
    config = SPLIT_CONFIG if make is split else target_config()
    assert find_head(folder, config).zero_centred is zero_centred


@pytest.mark.parametrize(
    "file", ["mtp.safetensors", "model.safetensors"], ids=["unmarked side file", "next to a converted target"]
)
def test_provenance_may_be_unknown(file: str, tmp_path: Path) -> None:
    """A head that was repacked without a mark does not tell how its norms are stored."""
    files = {"model.safetensors": trunk(original=False)}
    files[file] = files.get(file, {}) | as_published(random_head())
    assert find_head(write(tmp_path, target_config(), files), target_config()).zero_centred is None


@pytest.mark.parametrize("shifted", [False, True])
def test_unknown_provenance_is_settled_by_agreement(
    shifted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unmarked side file is read the way that makes the head agree with the target."""
    monkeypatch.setattr(module, "PROBE_TOKENS", 24)
    target = transparent_target()
    tensors = transparent_head(target)
    stored = tensors if shifted else zero_centred(tensors)
    folder = write(tmp_path, target_config(), {"mtp.safetensors": prefixed(stored, "mtp.")})
    drafter = load_drafter(folder, target, AUTO)
    text = plain(target, [*PROMPT, 5], 3).tokens
    assert proposals(drafter, target) == text


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_heads_load_with_mixed_bits(bits: int, tmp_path: Path) -> None:
    """Bits and group size come from each tensor's shapes: a head may mix them."""
    head = random_head("moe")
    quantise_head(head, bits, group_size=32)
    head.fc = nn.Linear(128, 64, bias=False)
    head.fc.weight = random_head("moe").fc.weight
    head.fc = head.fc.to_quantized(64, 8)
    drafter = qwen_drafter(head, config_of("moe"))
    drafter.bind(tiny.target("qwen3_5"))
    files = {"model.safetensors": parameters(head)}
    folder = write(tmp_path, {"model_type": MODEL_TYPE, "text_config": TEXTS["moe"]}, files)
    assert proposals(load_drafter(folder, tiny.target("qwen3_5"), AUTO)) == proposals(drafter)


def test_a_quantised_head_in_shards_is_not_shifted(tmp_path: Path) -> None:
    """Quantised tensors were converted, so the 1 is not added again."""
    head = random_head()
    quantise_head(head, 4)
    files = {"model.safetensors": trunk(original=True) | prefixed(parameters(head), "mtp.")}
    assert find_head(write(tmp_path, target_config(), files), target_config()).zero_centred is False


def test_a_head_is_quantised_at_load_when_asked(tmp_path: Path) -> None:
    """Asking for bits quantises the linear layers; legal bits only."""
    folder, target = shards(tmp_path), tiny.target("qwen3_5")
    head = random_head()
    quantise_head(head, 8)
    drafter = qwen_drafter(head, config_of())
    drafter.bind(target)
    assert proposals(load_drafter(folder, target, DraftOptions(bits=8))) == proposals(drafter)
    with pytest.raises(ValueError, match="legal are 2, 3, 4"):
        load_drafter(folder, target, DraftOptions(bits=7))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "hidden size 32, the target 64"),
        ({"vocab_size": 95}, "95 tokens, the target 96"),
    ],
)
@pytest.mark.parametrize("probed", [False, True])
def test_an_incompatible_pair_is_named(
    changes: dict[str, int], message: str, probed: bool, tmp_path: Path
) -> None:
    """A head for another width or vocabulary is refused with both values, before anything is computed."""
    text = TEXTS["dense"] | changes
    width = changes.get("hidden_size", 64)
    target = Target(tiny.qwen3_5_model())
    tensors = head_of_width(width)
    if probed:
        files = {"mtp.safetensors": prefixed(tensors, "mtp.")}
        folder = write(tmp_path, {"model_type": "qwen3_5", "text_config": text}, files)
    else:
        folder = write(tmp_path, SPLIT_CONFIG | {"text_config": text}, {"model.safetensors": tensors})
    with pytest.raises(ValueError, match=message):
        load_drafter(folder, target, AUTO)


def head_of_width(width: int) -> dict[str, mx.array]:
    return parameters(QwenHead(head_config({"text_config": TEXTS["dense"] | {"hidden_size": width}})))


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    """A head without one of its tensors is an error naming it."""
    tensors = parameters(random_head())
    del tensors["layers.0.self_attn.q_norm.weight"]
    folder = write(tmp_path, SPLIT_CONFIG, {"model.safetensors": tensors})
    with pytest.raises(ValueError, match=r"q_norm\.weight"):
        load_drafter(folder, tiny.target("qwen3_5"), AUTO)


def test_a_folder_without_a_head_is_no_mtp_drafter(tmp_path: Path) -> None:
    """Asking for MTP from a checkpoint without head tensors is an error, from the loader itself as well."""
    folder = write(tmp_path, target_config(), {"model.safetensors": trunk(original=True)})
    with pytest.raises(ValueError, match="'qwen3_5' is no MTP drafter"):
        load_drafter(folder, tiny.target("qwen3_5"), DraftOptions(kind="mtp"))
    with pytest.raises(ValueError, match=r"no tensor is called mtp\.fc\.weight"):
        load_qwen_drafter(folder, tiny.target("qwen3_5"))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    """An index naming a file that was not downloaded is an error naming the file."""
    folder = shards(tmp_path)
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lacks model-00001-of-00002\.safetensors"):
        load_drafter(folder, tiny.target("qwen3_5"), AUTO)


def test_a_whole_checkpoint_can_still_be_a_draft_model(tmp_path: Path) -> None:
    """A Qwen checkpoint without a head drafts as a model of its own."""
    model = tiny.qwen3_5_model()
    files = {"model.safetensors": dict(tree_flatten(model.parameters()))}
    folder = write(tmp_path, target_config(), files, {"format": "mlx"})
    assert isinstance(load_drafter(folder, tiny.target("qwen3_5"), AUTO), ModelDrafter)
    files["mtp.safetensors"] = parameters(random_head())
    write(tmp_path, target_config(), files, {"format": "mlx"})
    assert isinstance(load_drafter(folder, tiny.target("qwen3_5"), AUTO), ChainedHeadDrafter)
    as_model = load_drafter(folder, tiny.target("qwen3_5"), DraftOptions(kind="model"))
    assert isinstance(as_model, ModelDrafter)
