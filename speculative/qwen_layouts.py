"""Where a folder keeps a Qwen MTP head, and whether its norm weights are still zero-centred.

Owns file names, tensor prefixes and provenance. Knows neither the network nor the target.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from msgspec import Struct

from speculative.qwen_head import MODEL_TYPE, TARGET_TYPES

SIDE_FILES = ("mtp.safetensors", "model-mtp.safetensors", "mtp/weights.safetensors", "mtp/model.safetensors")
_CONVERTED_PREFIX = "language_model.mtp."
_PREFIXES = ("mtp.", _CONVERTED_PREFIX)
# Every Qwen head has it, and nothing else in a checkpoint is called so.
_MARK = "fc.weight"


class HeadSource(Struct, frozen=True, kw_only=True):
    """A head as found: unevaluated tensors without prefix.

    `zero_centred` says whether the norms still need their 1 added; None when the files do not tell.
    """

    layout: str
    tensors: dict[str, mx.array]
    zero_centred: bool | None


def has_qwen_head(folder: Path, config: dict[str, Any]) -> bool:
    """Whether the folder is a split head, or a Qwen checkpoint with the tensors of one."""
    model_type = config.get("model_type")
    if model_type in TARGET_TYPES:
        return _side_file(folder) is not None or bool(_head_shards(tensor_files(folder)))
    return model_type == MODEL_TYPE


def find_head(folder: Path, config: dict[str, Any]) -> HeadSource:
    """The head in `folder`. Raises ValueError when it holds none.

    Zero-centred norms come with original shards only: splitting, quantising and converting with mlx-lm all
    go along with adding the 1. Mean values are no evidence, trained norms are anywhere.
    """
    if config.get("model_type") == MODEL_TYPE:
        return _from_files("split folder", sorted(folder.glob("*.safetensors")), zero_centred=False)
    if side := _side_file(folder):
        return _from_files(side, [folder / side], zero_centred=None)
    files = tensor_files(folder)
    shards = _head_shards(files)
    if not shards:
        raise ValueError(f"{folder} holds no Qwen MTP head: no tensor is called mtp.{_MARK}")
    return _from_files("checkpoint", shards, zero_centred=_trunk_is_original(files))


def tensor_files(folder: Path) -> dict[str, Path]:
    """The file of every tensor of a checkpoint, from its index where it has one.

    Raises ValueError when the index names a file that is not there.
    """
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return {name: path for path in sorted(folder.glob("*.safetensors")) for name in _load(path)[0]}
    weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
    for missing in (name for name in sorted(set(weight_map.values())) if not (folder / name).exists()):
        raise ValueError(f"{folder} lacks {missing}, which its index names")
    return {name: folder / file for name, file in weight_map.items()}


def _side_file(folder: Path) -> str | None:
    return next((name for name in SIDE_FILES if (folder / name).exists()), None)


def _head_shards(files: dict[str, Path]) -> list[Path]:
    """The files with head tensors; empty when the head's projection is in none."""
    if not any(prefix + _MARK in files for prefix in _PREFIXES):
        return []
    return sorted({path for name, path in files.items() if name.startswith(_PREFIXES)})


def _from_files(layout: str, paths: list[Path], *, zero_centred: bool | None) -> HeadSource:
    tensors: dict[str, mx.array] = {}
    converted = False
    for path in paths:
        loaded, metadata = _load(path)
        in_head = {n: a for n, a in loaded.items() if n.startswith(_PREFIXES)}
        converted |= metadata.get("format") == "mlx" or any(n.startswith(_CONVERTED_PREFIX) for n in in_head)
        tensors |= {_short(name): array for name, array in (in_head or loaded).items()}
    converted |= any(name.endswith(".scales") for name in tensors)
    if _MARK not in tensors:
        raise ValueError(f"{', '.join(map(str, paths)) or layout} holds no Qwen MTP head: no {_MARK}")
    return HeadSource(layout=layout, tensors=tensors, zero_centred=False if converted else zero_centred)


def _short(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _trunk_is_original(files: dict[str, Path]) -> bool | None:
    """Whether the target next to the head is as published; None when it was converted but the head maybe not.

    mlx-lm's own cue: a conversion moves the convolution's kernel axis from the last place.
    """
    name = next((name for name in files if name.endswith("conv1d.weight")), None)
    if name is None:
        return True
    return True if _load(files[name])[0][name].shape[-1] != 1 else None


def _load(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    """Unevaluated tensors and metadata of one file."""
    loaded: Any = mx.load(str(path), return_metadata=True)
    return loaded
