"""Finds out what kind of drafter a folder holds and loads it. Knows the kinds, not how they draft."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import mlx.core as mx
from mlx_lm.utils import load_model
from msgspec import Struct

from speculative import gemma_assistant, glm_drafter
from speculative.chained_head import ChainedHeadDrafter
from speculative.drafter import Drafter
from speculative.gemma_drafter import load_gemma_drafter
from speculative.generic_drafter import load_generic_drafter
from speculative.generic_head import MODEL_TYPE
from speculative.glm_drafter import load_glm_drafter
from speculative.inkling_drafter import load_inkling_drafter
from speculative.inkling_head import has_inkling_head
from speculative.model_drafter import ModelDrafter
from speculative.qwen_drafter import load_qwen_drafter
from speculative.qwen_layouts import has_qwen_head
from speculative.target import Target


class DraftOptions(Struct, frozen=True, kw_only=True):
    """What the operator says about a drafter: its kind, and bits to quantise it to (0: as stored).

    `confidence_stop` as in `ChainedHeadDrafter`; drafters of other makes know none.
    """

    kind: Literal["auto", "mtp", "model"] = "auto"
    bits: int = 0
    confidence_stop: float = 0.0


class HeadKind(NamedTuple):
    """A kind of MTP drafter: which folders (with their `config.json`) hold one, and how it is loaded."""

    fits: Callable[[Path, dict[str, Any]], bool]
    load: Callable[[Path, Target, int | None], Drafter]


def _named(*model_types: str) -> Callable[[Path, dict[str, Any]], bool]:
    return lambda folder, config: config.get("model_type") in model_types


def _loaded(load: Callable[[Path, mx.Dtype, int | None], Drafter]) -> Callable[..., Drafter]:
    return lambda folder, target, bits: load(folder, target.dtype, bits)


HEAD_KINDS = (
    HeadKind(_named(MODEL_TYPE), _loaded(load_generic_drafter)),
    HeadKind(_named(glm_drafter.MODEL_TYPE), _loaded(load_glm_drafter)),
    HeadKind(_named(*gemma_assistant.MODEL_TYPES), _loaded(load_gemma_drafter)),
    HeadKind(has_qwen_head, load_qwen_drafter),
    HeadKind(has_inkling_head, load_inkling_drafter),
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
    if isinstance(drafter, ChainedHeadDrafter):
        drafter.confidence_stop = options.confidence_stop
    elif options.confidence_stop:
        raise ValueError(
            f"confidence_stop is {options.confidence_stop}; "
            "a drafter of this make always drafts to the full depth, legal is 0"
        )
    return drafter
