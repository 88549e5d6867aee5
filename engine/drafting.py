"""Brings a drafter to a loaded model: finding it, checking it, and probing whether it is exact here.

Owns the order of those steps; knows no requests and no policy.
"""

import json
from collections.abc import Callable, Generator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from engine import embedded
from engine.config import EMBEDDED_MODEL, EngineConfig
from engine.errors import ModelLoadError
from engine.fingerprint import fingerprint
from engine.loading import LoadedModel, source_paths
from engine.probe_store import ProbeStore
from speculative import heads
from speculative.detect import DraftOptions, load_drafter
from speculative.drafter import Drafter
from speculative.probe import ProbeResult, ProbeSettings, probe_steps
from speculative.selection import AppliedSelection
from speculative.target import Target


class Speculation(Struct, frozen=True, kw_only=True):
    """A drafter bound to its target, not yet probed. `name` is what people call the drafter.

    `pinned_by` names the switch that forbids other kernels than the default ones, if one does.
    """

    target: Target
    drafter: Drafter
    name: str
    model_type: str
    block_size: int
    fingerprint: str
    pinned_by: str = ""


class Probed(Struct, frozen=True, kw_only=True):
    """A probe's answer put into force; `selection` names the kernels every request is served with."""

    is_exact: bool
    selection: str
    detail: str
    plain_ms: float
    rows_ms: tuple[float, ...]

    def refuted(self, detail: str) -> "Probed":
        """The same, with exactness disproved by a later finding; the selection stays in force."""
        return replace(self, is_exact=False, detail=detail)

    @property
    def plain_scale(self) -> float:
        """Time of an ordinary decode step over that of a plain step under the selection in force.

        At most 1: padding adds work, so a quotient above it is a disturbed measurement.
        """
        return min(1.0, self.plain_ms / self.rows_ms[0]) if self.rows_ms and self.plain_ms else 1.0


def attach_drafter(
    loaded: LoadedModel, config: EngineConfig, progress: Callable[[str], None]
) -> Speculation | None:
    """Load and bind the configured drafter; None when the server has none.

    Raises ModelLoadError when there is one that cannot serve this model.
    """
    path = _drafter_path(config)
    if path is None:
        return None
    progress(f"reading the drafter {path.name}")
    try:
        target = Target(loaded.model)
        drafter = load_drafter(path, target, DraftOptions(kind=config.draft_kind, bits=config.draft_bits))
    except (ValueError, OSError, KeyError) as error:
        raise ModelLoadError(f"the drafter {path} cannot serve {loaded.card.model_id}: {error}") from error
    block_size = config.draft_block_size or drafter.block_size
    return Speculation(
        target=target,
        drafter=drafter,
        name=path.resolve().name,
        model_type=_model_type(path),
        block_size=block_size,
        fingerprint=fingerprint(
            loaded.facts, [*source_paths(config), path], block_size, is_pinned=config.qmv_wide is not None
        ),
        pinned_by="" if config.qmv_wide is None else "MLXCEL_QMV_WIDE",
    )


class ProbeRun:
    """The exactness probe of one speculation, in pieces that fit between requests."""

    def __init__(self, speculation: Speculation, store: ProbeStore, context_length: int, chunk: int) -> None:
        """`chunk` is the prefill chunk in tokens."""
        self._speculation = speculation
        self._store = store
        self._settings = ProbeSettings(
            block_size=speculation.block_size,
            context_length=context_length,
            prefill_chunk=chunk,
            pinned_by=speculation.pinned_by,
        )
        self._steps: Generator[None, None, ProbeResult] | None = None

    def step(self) -> Probed | None:
        """Do a piece of work of about one forward; returns the answer once it is there."""
        if self._steps is None:
            stored = self._store.load(self._speculation.fingerprint)
            if stored is not None:
                return self._put_into_force(stored)
            self._steps = probe_steps(self._speculation.target, self._settings)
        try:
            next(self._steps)
        except StopIteration as done:
            result: ProbeResult = done.value
            self._store.save(self._speculation.fingerprint, result)
            return self._put_into_force(result)
        return None

    def _put_into_force(self, result: ProbeResult) -> Probed:
        if result.exact:
            AppliedSelection(self._speculation.target, result.selection)
        return Probed(
            is_exact=result.exact,
            selection=result.selection.name,
            detail=result.detail,
            plain_ms=result.verify_cost.plain_ms,
            rows_ms=result.verify_cost.rows_ms,
        )


def _model_type(folder: Path) -> str:
    return str(json.loads((folder / "config.json").read_text()).get("model_type", "unknown"))


def _drafter_path(config: EngineConfig) -> Path | None:
    """Where the configured drafter is; `auto` is the head shipped for the embedded model, if it is served."""
    match config.draft_model:
        case "none":
            return None
        case "auto":
            is_embedded = config.model.startswith(EMBEDDED_MODEL)
            return heads.shipped(embedded.MODEL_ID) if is_embedded else None
        case name:
            path = Path(name).expanduser()
            if not path.exists():
                raise ModelLoadError(f"drafter {name!r} does not exist; give a folder, `auto` or `none`")
            return path
