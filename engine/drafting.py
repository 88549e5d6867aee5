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
from engine.cpu.narrow import narrow
from engine.errors import ModelLoadError
from engine.fingerprint import fingerprint
from engine.loading import LoadedModel, source_paths
from engine.probe_store import ProbeStore, StoredProbe
from speculative import heads
from speculative.chained_head import ChainedHeadDrafter
from speculative.detect import DraftOptions, load_drafter
from speculative.draft_cost import draft_step
from speculative.drafter import Drafter
from speculative.probe import ProbeResult, ProbeSettings, probe_steps
from speculative.selection import AppliedSelection
from speculative.target import Target

# Beyond this a verify stops being a small forward, and no drafter is right often enough.
AUTO_SIZES = tuple(range(2, 9))


class Speculation(Struct, frozen=True, kw_only=True):
    """A drafter bound to its target, not yet probed. `name` is what people call the drafter.

    `may_resize` says that the block size is only the one to start with; `pinned_by` names the switch that
    forbids other kernels than the default ones, if one does.
    """

    target: Target
    drafter: Drafter
    name: str
    model_type: str
    block_size: int
    may_resize: bool
    fingerprint: str
    pinned_by: str = ""

    @property
    def probe_name(self) -> str:
        """What the probe's result is stored under; one that covers several block sizes is another one."""
        return f"{self.fingerprint}-auto" if self.may_resize else self.fingerprint


class Probed(Struct, frozen=True, kw_only=True):
    """A probe's answer put into force; `selection` names the kernels every request is served with.

    `exact_sizes` are the block sizes that have been found exact under it, `draft_step_ms` is the time of one
    drafted token.
    """

    is_exact: bool
    selection: str
    detail: str
    plain_ms: float
    rows_ms: tuple[float, ...]
    draft_step_ms: float | None = None
    exact_sizes: tuple[int, ...] = ()

    def refuted(self, detail: str) -> "Probed":
        """The same, with exactness disproved by a later finding; the selection stays in force."""
        return replace(self, is_exact=False, detail=detail)

    @property
    def plain_scale(self) -> float:
        """Time of an ordinary decode step over that of a plain step under the selection in force.

        At most 1: padding adds work, so a quotient above it is a disturbed measurement.
        """
        if self.selection == "default" or not (self.rows_ms and self.plain_ms):
            return 1.0
        return min(1.0, self.plain_ms / self.rows_ms[0])


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
        options = DraftOptions(
            kind=config.draft_kind, bits=config.draft_bits, confidence_stop=config.draft_confidence_stop
        )
        drafter = load_drafter(path, target, options)
        if isinstance(drafter, ChainedHeadDrafter):
            narrow(drafter.own_weights)
    except (ValueError, OSError, KeyError) as error:
        raise ModelLoadError(f"the drafter {path} cannot serve {loaded.card.model_id}: {error}") from error
    block_size = config.fixed_block_size or drafter.block_size
    return Speculation(
        target=target,
        drafter=drafter,
        name=path.resolve().name,
        model_type=_model_type(path),
        block_size=block_size,
        may_resize=config.chooses_block_size and drafter.kind == "mtp",
        fingerprint=fingerprint(
            loaded.facts,
            [*source_paths(config), path],
            block_size,
            drafting=f"lookup {config.draft_lookup}, stop {config.draft_confidence_stop}",
            is_pinned=config.qmv_wide is not None,
        ),
        pinned_by="" if config.qmv_wide is None else "MLXCEL_QMV_WIDE",
    )


class ProbeRun:
    """The exactness probe of one speculation, in pieces that fit between requests.

    A speculation whose block size may change is probed at its own size first, which settles the kernels, and
    then at every other size under the same kernels: a change of size never changes what plain decode does.
    """

    def __init__(self, speculation: Speculation, store: ProbeStore, context_length: int, chunk: int) -> None:
        """`chunk` is the prefill chunk in tokens."""
        self._speculation = speculation
        self._store = store
        self._settings = ProbeSettings(
            block_size=speculation.block_size,
            other_sizes=AUTO_SIZES if speculation.may_resize else (),
            context_length=context_length,
            prefill_chunk=chunk,
            pinned_by=speculation.pinned_by,
        )
        self._steps: Generator[None, None, Probed] | None = None

    def step(self) -> Probed | None:
        """Do a piece of work of about one forward; returns the answer once it is there."""
        self._steps = self._steps or self._run()
        try:
            next(self._steps)
        except StopIteration as done:
            return done.value
        return None

    def _run(self) -> Generator[None, None, Probed]:
        speculation = self._speculation
        stored = self._store.load(speculation.probe_name)
        if stored is not None:
            self._put_into_force(stored.result)
            return _probed(stored)
        result = yield from probe_steps(speculation.target, self._settings)
        self._put_into_force(result)
        draft_ms = None
        if result.exact:
            draft_ms = yield from draft_step(
                speculation.target, speculation.drafter, speculation.block_size - 1
            )
        stored = StoredProbe(result=result, draft_step_ms=draft_ms)
        self._store.save(speculation.probe_name, stored)
        return _probed(stored)

    def _put_into_force(self, result: ProbeResult) -> None:
        if result.exact:
            AppliedSelection(self._speculation.target, result.selection)


def _probed(stored: StoredProbe) -> Probed:
    result = stored.result
    return Probed(
        is_exact=result.exact,
        selection=result.selection.name,
        detail=result.detail,
        plain_ms=result.verify_cost.plain_ms,
        rows_ms=result.verify_cost.rows_ms,
        draft_step_ms=stored.draft_step_ms,
        exact_sizes=result.exact_sizes,
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
