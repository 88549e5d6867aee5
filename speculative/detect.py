"""Finds out what kind of drafter a folder holds and loads it. Knows the kinds, not how they draft."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mlx_lm.utils import load_model
from msgspec import Struct

from speculative.drafter import Drafter
from speculative.generic_drafter import load_generic_drafter
from speculative.generic_head import MODEL_TYPE
from speculative.model_drafter import ModelDrafter
from speculative.qwen_drafter import load_qwen_drafter
from speculative.qwen_layouts import has_qwen_head
from speculative.target import Target


class DraftOptions(Struct, frozen=True, kw_only=True):
    """What the operator says about a drafter: its kind, and bits to quantise it to (0: as stored)."""

    kind: Literal["auto", "mtp", "model"] = "auto"
    bits: int = 0


class HeadKind(NamedTuple):
    """A kind of MTP drafter: which folders (with their `config.json`) hold one, and how it is loaded."""

    fits: Callable[[Path, dict[str, Any]], bool]
    load: Callable[[Path, Target, int | None], Drafter]


def _named(*model_types: str) -> Callable[[Path, dict[str, Any]], bool]:
    return lambda folder, config: config.get("model_type") in model_types


HEAD_KINDS = (
    HeadKind(
        _named(MODEL_TYPE), lambda folder, target, bits: load_generic_drafter(folder, target.dtype, bits)
    ),
    HeadKind(has_qwen_head, load_qwen_drafter),
)


def load_drafter(folder: Path, target: Target, options: DraftOptions) -> Drafter:
    """The drafter in `folder`, bound to `target`. Raises ValueError when it cannot serve it."""
    config = json.loads((folder / "config.json").read_text())
    kinds = () if options.kind == "model" else HEAD_KINDS
    kind = next((kind for kind in kinds if kind.fits(folder, config)), None)
    if kind is not None:
        drafter = kind.load(folder, target, options.bits or None)
    elif options.kind == "mtp":
        raise ValueError(f"model_type {config.get('model_type')!r} is no MTP drafter known here")
    else:
        drafter = ModelDrafter(load_model(folder)[0])
    drafter.bind(target)
    return drafter
