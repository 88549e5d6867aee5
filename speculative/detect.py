"""Finds out what kind of drafter a folder holds and loads it. Knows the kinds, not how they draft."""

import json
from pathlib import Path
from typing import Literal

from mlx_lm.utils import load_model
from msgspec import Struct

from speculative import gemma_assistant, glm_drafter
from speculative.drafter import Drafter
from speculative.gemma_drafter import load_gemma_drafter
from speculative.generic_drafter import load_generic_drafter
from speculative.generic_head import MODEL_TYPE
from speculative.glm_drafter import load_glm_drafter
from speculative.model_drafter import ModelDrafter
from speculative.target import Target


class DraftOptions(Struct, frozen=True, kw_only=True):
    """What the operator says about a drafter: its kind, and bits to quantise it to (0: as stored)."""

    kind: Literal["auto", "mtp", "model"] = "auto"
    bits: int = 0


def load_drafter(folder: Path, target: Target, options: DraftOptions) -> Drafter:
    """The drafter in `folder`, bound to `target`. Raises ValueError when it cannot serve it."""
    config = json.loads((folder / "config.json").read_text())
    model_type = config.get("model_type")
    if model_type == MODEL_TYPE and options.kind != "model":
        drafter: Drafter = load_generic_drafter(folder, target.dtype, options.bits or None)
    elif model_type == glm_drafter.MODEL_TYPE and options.kind != "model":
        drafter = load_glm_drafter(folder, target.dtype, options.bits or None)
    elif model_type in gemma_assistant.MODEL_TYPES and options.kind != "model":
        drafter = load_gemma_drafter(folder, target.dtype, options.bits or None)
    elif options.kind == "mtp":
        raise ValueError(f"model_type {model_type!r} is no MTP drafter known here")
    else:
        drafter = ModelDrafter(load_model(folder)[0])
    drafter.bind(target)
    return drafter
