"""The policy actor: one folded value, one hint store, one published snapshot. It decides nothing itself
and is on no token's path."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import structlog

from messages.policy import (
    Attach,
    Detach,
    ExactnessFound,
    GateReply,
    Message,
    PolicySnapshot,
    Renew,
    Sample,
)
from policy.cluster import Cluster, dispatch_to_load, reply
from policy.config import PolicyConfig
from policy.effects import Effect, ProfileGrew, Reopened, Restored, VerdictReached, effects
from policy.fold import expire, forget, observe
from policy.hint import Hint, StoredProfile
from policy.hint_store import HintStore, StoredHint
from policy.machine import NOTHING
from policy.report import publish
from policy.switches import Switches
from policy.wire import worker_not_ready

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_TRACE = 4096


class PolicyActor:
    """Folds what replicas report, stores what must survive, and answers with the gate in force.

    Everything is kept in memory and each change is stored before it is answered or published, so the process
    may be killed at any moment. Versions start at the clock's milliseconds and so rise across restarts.
    """

    def __init__(
        self,
        config: PolicyConfig,
        switches: Switches,
        cache_root: Path | None,
        *,
        clock: Callable[[], float] = time.time,
        heartbeat_s: float = 1.0,
    ) -> None:
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._store = HintStore(cache_root)
        first_version = int(clock() * 1000)
        self._cluster = Cluster(config=config, switches=switches, version=first_version)
        self._published = worker_not_ready(version=first_version)
        self._changed = asyncio.Event()
        self._trace: deque[Message] = deque(maxlen=MAX_TRACE)

    async def attach(self, message: Attach) -> GateReply:
        """A replica has loaded, or knows its dispatch better."""
        return self._fold(message)

    async def renew(self, message: Renew) -> GateReply:
        """A replica lives; `NotAttached` asks it to attach again."""
        return self._fold(message)

    async def record(self, message: Sample) -> GateReply:
        """One measured request has finished."""
        return self._fold(message)

    async def exactness_found(self, message: ExactnessFound) -> GateReply:
        """A late probe or an audit has a result."""
        return self._fold(message)

    async def detach(self, message: Detach) -> GateReply:
        """A replica is leaving."""
        return self._fold(message)

    async def snapshot(self) -> PolicySnapshot:
        """The present snapshot, leases checked against the clock."""
        return self._refresh()

    async def watch(self) -> AsyncIterator[PolicySnapshot]:
        """A complete snapshot now, on every change, and at every heartbeat; a slow reader skips versions."""
        while True:
            snapshot = self._refresh()
            changed = self._changed
            yield snapshot
            try:
                await asyncio.wait_for(changed.wait(), self._heartbeat_s)
            except TimeoutError:
                continue

    async def trace(self) -> tuple[Message, ...]:
        """The newest messages, renewals left out, for `policy.replay`."""
        return tuple(self._trace)

    async def hints(self) -> tuple[StoredHint, ...]:
        """All stored verdicts."""
        return self._store.hints()

    async def forget(self, key: str) -> bool:
        """Drop what is known of a pairing and measure it anew; False if nothing was known."""
        stored = self._store.forget(key)
        before = self._cluster
        self._cluster = forget(before, key)
        self._refresh()
        return stored or self._cluster is not before

    def check_health(self) -> None:
        """Raises if the snapshot cannot be composed."""
        self._refresh()

    def _fold(self, message: Message) -> GateReply:
        stamped = msgspec.structs.replace(message, at_s=self._clock())
        to_load = dispatch_to_load(self._cluster, stamped) if isinstance(stamped, Attach) else None
        remembered = NOTHING if to_load is None else self._store.load(to_load)
        before = self._cluster
        self._cluster = observe(before, stamped, remembered)
        if not isinstance(stamped, Renew):
            self._trace.append(stamped)
        for effect in effects(before, self._cluster):
            self._perform(effect)
        self._refresh()
        return reply(self._cluster, stamped)

    def _refresh(self) -> PolicySnapshot:
        self._cluster = expire(self._cluster, self._clock())
        published = publish(self._cluster, self._published)
        if published is not self._published:
            self._published = published
            self._changed.set()
            self._changed = asyncio.Event()
        return published

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Restored(key=key, hint=hint):
                log.info("verdict restored", key=key, **_said(hint))
            case VerdictReached(key=key, hint=hint):
                self._save(key, hint)
                log.info("verdict settled", key=key, **_said(hint), **_measured(hint))
            case Reopened(key=key, hint=hint):
                log.info("verdict reopened", key=key, **_said(hint))
            case ProfileGrew(key=key, profile=profile):
                self._save(key, profile)

    def _save(self, key: str, stored: Hint | StoredProfile) -> None:
        error = self._store.save(stored)
        if error is not None:
            log.warning("not stored; kept in memory", key=key, error=str(error))


def _said(hint: Hint) -> dict[str, object]:
    return {
        "verdict": hint.verdict,
        "acceptance": hint.acceptance_rate,
        "target": hint.target,
        "drafter": hint.drafter,
        "hardware": hint.hardware,
        "block_size": hint.block_size,
    }


def _measured(hint: Hint) -> dict[str, object]:
    """Every number behind a verdict, so that a log alone can be checked."""
    figures = hint.figures
    per_round = figures.per_round
    paired = figures.paired
    return {
        "samples": hint.samples,
        "rounds": figures.rounds,
        "rule": hint.rule,
        **({} if paired is None else msgspec.structs.asdict(paired)),
        **({} if per_round is None else msgspec.structs.asdict(per_round)),
        "original_speedup": figures.original_speedup,
        "original_verdict": figures.original_verdict,
    }
