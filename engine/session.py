"""One engine with everything around it: load, drafter, warm-up, probe, in the order they must happen.

Runs on the engine's thread; tells what it reached through plain values.
"""

import time
from collections.abc import Callable

import structlog
from msgspec import Struct

from engine.audit import LiveAudit
from engine.blas import Blas
from engine.config import EngineConfig
from engine.cpu.install import suit_cpu
from engine.device import DeviceFacts
from engine.drafting import Probed, ProbeRun, Speculation, attach_drafter
from engine.engine import Engine
from engine.identity import Identity
from engine.loading import load
from engine.probe_store import ProbeStore
from engine.speculator import Speculator
from messages.events import DraftKind
from messages.model import ModelCard
from messages.policy import Gate

log = structlog.get_logger()

# A probe that takes longer than this is finished while the engine is idle. Requests that come meanwhile are
# served plainly, under whichever kernel selection the probe is trying.
_BOOT_PROBE_S = 2.0
# Both arms of the probe share their prefill, so its chunks need not be those of requests.
_MIN_PROBE_CHUNK = 128


class DraftFacts(Struct, frozen=True, kw_only=True):
    """What is known of the drafter; `probed` is None until the exactness probe has answered.

    `block_size` is the one in use, `may_resize` says that it follows the policy's recommendation.
    """

    name: str
    kind: DraftKind
    model_type: str
    block_size: int
    may_resize: bool
    fingerprint: str
    probed: Probed | None


class Facts(Struct, frozen=True, kw_only=True):
    """What a session reached: the model's card, the device, and the drafter if there is one."""

    card: ModelCard
    device: DeviceFacts
    drafter: DraftFacts | None


class Session:
    """A loaded engine.

    `facts` changes when a probe that went on after the start has answered, when an audit found a mismatch,
    and with the block size.
    """

    def __init__(
        self, config: EngineConfig, identity: Identity, blas: Blas, progress: Callable[[str], None]
    ) -> None:
        """Blocks until the engine can serve. Raises ModelLoadError."""
        self._config = config
        loaded = load(config, blas, progress)
        suit_cpu(loaded.model)
        self._card, self._device = loaded.card, loaded.facts.device
        self._speculation = attach_drafter(loaded, config, progress)
        self._probed: Probed | None = None
        self._is_refuted = False
        self._store = ProbeStore(config.cache_path())
        speculator = _speculator(self._speculation, config, identity)
        target = self._speculation.target if self._speculation else None
        self._speculator = speculator
        self.engine = Engine(loaded, config, target, speculator)
        self.engine.warmup(progress)
        self._probe = self._new_probe()
        self._probe_at_boot(progress)
        facts = loaded.facts
        log.info(
            "model_ready",
            model=loaded.card.model_id,
            dtype=facts.weights_dtype,
            parameters=facts.num_parameters,
            device=facts.device.device_name,
            backend=facts.device.backend,
            blas=facts.blas.describe(),
            load_s=round(facts.load_s, 2),
            prefill_chunk=self.engine.prefill_chunk,
            drafter=self._speculation.name if self._speculation else None,
        )

    @property
    def facts(self) -> Facts:
        """What is known now."""
        return Facts(card=self._card, device=self._device, drafter=self._draft_facts())

    @property
    def speculation(self) -> Speculation | None:
        """The bound drafter, if there is one; the selection in force is the probe's once it has answered."""
        return self._speculation

    @property
    def has_idle_work(self) -> bool:
        """Whether a probe is still to be done."""
        return self._probe is not None

    def idle_step(self) -> bool:
        """Do a piece of probe while no request runs; returns whether `facts` changed."""
        if self._probe is None:
            return False
        probed = self._probe.step()
        if probed is None:
            return False
        self._conclude(probed)
        return True

    def heed_audit(self) -> bool:
        """Take in what the live audit found since the last call; returns whether `facts` changed.

        A difference refutes a probe that found none. Where inexactness was known and allowed, only the first
        changed token is news.
        """
        speculation, speculator, probed = self._speculation, self._speculator, self._probed
        found = speculator.audit.take() if speculator else None
        if found is None or probed is None or speculation is None or self._is_refuted:
            return False
        if not (probed.is_exact or found.changes_token):
            return False
        self._is_refuted = True
        detail = f"{found.reason}."
        self._probed = probed.refuted(detail)
        error = self._store.refute(speculation.probe_name, detail)
        if error is not None:
            log.warning("audit_not_stored", consequence="the next start may probe again", error=str(error))
        self._warn_inexact(detail)
        return True

    def set_gate(self, gate: Gate) -> bool:
        """Take a newer gate, and the block size it recommends; returns whether `facts` changed.

        Ignored are an older gate that arrives late and one for another block size. The policy judges MTP
        only: a classic draft model speculates whenever it is exact.
        """
        speculator = self._speculator
        if speculator is None or speculator.drafter.kind == "model":
            return False
        if gate.block_size not in (None, speculator.block_size) or gate.version < speculator.gate.version:
            return False
        speculator.gate = gate
        return self._adopt(speculator, gate.recommended_block_size)

    def _adopt(self, speculator: Speculator, block_size: int | None) -> bool:
        if self._speculation is None or not self._speculation.may_resize or self._probed is None:
            return False
        if block_size == speculator.block_size or block_size not in self._probed.exact_sizes:
            return False
        log.info("block_size_changed", before=speculator.block_size, after=block_size)
        speculator.resize(block_size)
        return True

    def _new_probe(self) -> ProbeRun | None:
        if self._speculation is None:
            return None
        return ProbeRun(
            self._speculation,
            self._store,
            self._card.context_length,
            max(self.engine.prefill_chunk, _MIN_PROBE_CHUNK),
        )

    def _probe_at_boot(self, progress: Callable[[str], None]) -> None:
        if not self.has_idle_work:
            return
        progress("probing whether speculation is exact here")
        deadline = time.monotonic() + _BOOT_PROBE_S
        while self.has_idle_work and time.monotonic() < deadline:
            self.idle_step()

    def _conclude(self, probed: Probed) -> None:
        self._probe = None
        self._probed = probed
        speculator = self._speculator
        if speculator is None:
            return
        speculator.is_exact = probed.is_exact or self._config.allow_inexact
        speculator.plain_scale = probed.plain_scale
        if probed.is_exact:
            log.info("exactness_probe_passed", selection=probed.selection, rows_ms=probed.rows_ms)
        else:
            self._warn_inexact(probed.detail)

    def _warn_inexact(self, reason: str) -> None:
        if self._config.allow_inexact:
            log.warning("mtp_inexact", reason=reason, allowed_by="MLXCEL_MTP_ALLOW_INEXACT")
            return
        log.warning(
            "mtp_declined",
            reason=reason,
            consequence="falling back to plain decode",
            override="MLXCEL_MTP_ALLOW_INEXACT=1",
        )

    def _draft_facts(self) -> DraftFacts | None:
        speculation, speculator = self._speculation, self._speculator
        if speculation is None or speculator is None:
            return None
        return DraftFacts(
            name=speculation.name,
            kind=speculation.drafter.kind,
            model_type=speculation.model_type,
            block_size=speculator.block_size,
            may_resize=speculation.may_resize,
            fingerprint=speculation.fingerprint,
            probed=self._probed,
        )


def _speculator(
    speculation: Speculation | None, config: EngineConfig, identity: Identity
) -> Speculator | None:
    if speculation is None:
        return None
    audit = LiveAudit(config.audit_share)
    speculator = Speculator(
        speculation.drafter,
        speculation.block_size,
        identity,
        audit,
        config.allow_inexact,
        copies=config.draft_lookup,
    )
    if speculation.drafter.kind == "model":
        speculator.gate = Gate(enabled=True)
    return speculator
