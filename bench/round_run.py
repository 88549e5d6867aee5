"""Times rounds and bare verify forwards in turn, in this process, under the kernels the server would use."""

import importlib
import os
from typing import TYPE_CHECKING

from msgspec import Struct

from bench.errors import BenchError
from bench.progress import Progress
from bench.round_cost import Point
from engine.blas import preload
from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.identity import Identity
from messages.scheduling import ModelName

if TYPE_CHECKING:
    from engine.session import Session


class Plan(Struct, frozen=True, kw_only=True):
    """What to measure: lengths of context in tokens, and turns per length."""

    config: EngineConfig
    contexts: tuple[int, ...]
    turns: int


def measure(plan: Plan, progress: Progress) -> tuple[list[Point], dict[str, object]]:
    """Load, probe to the end, measure every length; the points and the conditions they hold under.

    Raises BenchError when the model or its drafter cannot be had.
    """
    progress.total(2 + len(plan.contexts))
    progress.step("loading")
    session = _session(plan.config)
    speculation = session.speculation
    if speculation is None:
        raise BenchError(f"{plan.config.model} has no drafter; give it one with --model-draft")
    progress.step("probing exactness (once per model, drafter and machine)")
    while session.has_idle_work:
        session.idle_step()
    timer = importlib.import_module("bench.round_timer")
    points: list[Point] = []
    for context in plan.contexts:
        progress.step(f"{context} tokens of context")
        points.append(timer.measure_point(speculation, context, plan.turns))
    return points, _conditions(session)


def _session(config: EngineConfig) -> "Session":
    blas = preload(config.cache_path(), config.threads or os.cpu_count() or 1)
    # This imports MLX, which must not happen before the BLAS is in place.
    module = importlib.import_module("engine.session")
    try:
        return module.Session(config, Identity(ModelName("bench"), "0"), blas, lambda text: None)
    except ModelLoadError as error:
        raise BenchError(str(error)) from error


def _conditions(session: "Session") -> dict[str, object]:
    facts = session.facts
    drafter = facts.drafter
    probed = drafter.probed if drafter else None
    return {
        "target": facts.card.model_id,
        "drafter": drafter.name if drafter else None,
        "block_size": drafter.block_size if drafter else None,
        "selection": probed.selection if probed else None,
        "exact": probed.is_exact if probed else None,
        "backend": facts.device.backend,
    }
