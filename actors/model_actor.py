"""The model actor: an asyncio face over the engine thread; it computes nothing itself."""

import asyncio
import os
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from msgspec.structs import replace

from actors.engine_thread import Abort, EngineThread, Listener, SetGate, Submit
from actors.lease import Lease
from actors.machine import attachment
from actors.outbox import Outbox
from actors.ports import PolicyPort, SchedulerPort
from engine.config import EngineConfig
from engine.identity import Identity
from messages.events import TERMINAL, Cancelled, Event
from messages.model import ModelCard, ModelMessage, ModelState, ModelStatus
from messages.policy import Counts, Gate, Sample
from messages.requests import GenerateRequest, RequestId
from messages.scheduling import LoadReport, ModelName, Released

if TYPE_CHECKING:
    from engine.session import Facts

log = structlog.get_logger()

_Message = TypeVar("_Message", LoadReport, Released)

_REPORT_PERIOD_S = 0.5
_HEARTBEAT_S = 2.0
_CALL_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 2.0
_REMEMBERED_ABORTS = 1024


class ModelActor:
    """One model replica: owns the engine thread, routes events to ingresses, reports its load."""

    def __init__(self, name: str, config: EngineConfig, scheduler: SchedulerPort, policy: PolicyPort) -> None:
        """Returns at once; the model loads on its own thread. Needs a running event loop."""
        self._name = ModelName(name)
        self._config = config
        self._scheduler = scheduler
        self._policy = policy
        self._lease: Lease | None = None
        self._loop = asyncio.get_running_loop()
        self._status = ModelStatus(
            model=name, incarnation=f"{os.getpid()}-{uuid.uuid4().hex[:8]}", state="loading"
        )
        self._outboxes: dict[str, Outbox] = {}
        self._clients: dict[RequestId, str] = {}
        self._aborted: OrderedDict[RequestId, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine = EngineThread(config, Identity(self._name, self._status.incarnation), self._listener())
        self._reporter = self._loop.create_task(self._report_forever())

    async def submit(self, request: GenerateRequest) -> bool:
        """Start a request whose events go to `request.client`.

        Returns False, and will send nothing, when the model cannot take it: it is not ready, or this replica
        does not (yet) have that client's event stream.
        """
        outbox = self._outboxes.get(request.client)
        if outbox is None or self._status.state != "ready":
            return False
        if request.request_id in self._aborted:
            del self._aborted[request.request_id]
            outbox.put_events([Cancelled(request_id=request.request_id)])
            return True
        self._clients[request.request_id] = request.client
        self._engine.put(Submit(request))
        return True

    async def abort(self, request_id: RequestId) -> None:
        """Stop a request; an abort that overtakes its request is remembered."""
        if request_id in self._clients:
            self._engine.put(Abort(request_id))
            return
        self._aborted[request_id] = None
        while len(self._aborted) > _REMEMBERED_ABORTS:
            self._aborted.popitem(last=False)

    async def events(self, client: str) -> AsyncIterator[ModelMessage]:
        """The one stream of an ingress: status first, then everything about its requests.

        When the stream ends, so do the requests of that client: nobody is left to read them.
        """
        outbox = self._outboxes[client] = Outbox(self._status)
        try:
            async for message in outbox.messages(_HEARTBEAT_S):
                yield message
        finally:
            if self._outboxes.get(client) is outbox:
                del self._outboxes[client]
                for request_id in [rid for rid, owner in self._clients.items() if owner == client]:
                    self._engine.put(Abort(request_id))

    async def status(self) -> ModelStatus:
        """The replica's state, without its card's bulk."""
        return replace(self._status, card=None)

    def check_health(self) -> None:
        """Raise when the engine thread died of something other than a model that cannot load."""
        if not self._engine.alive and self._status.state != "failed":
            raise RuntimeError("the engine thread has ended")
        if self._reporter.done():
            raise RuntimeError("the load reporter has ended")

    def close(self) -> None:
        """End the engine thread."""
        self._reporter.cancel()
        for task in self._tasks:
            task.cancel()
        self._engine.close(_CLOSE_TIMEOUT_S)

    def _listener(self) -> Listener:
        def hop(function: object, *args: object) -> None:
            self._loop.call_soon_threadsafe(function, *args)  # pyright: ignore[reportArgumentType]

        return Listener(
            progress=lambda text: hop(self._set_state, "loading", text),
            ready=lambda facts: hop(self._on_ready, facts),
            failed=lambda reason: hop(self._set_state, "failed", reason),
            events=lambda events: hop(self._route, events),
            measured=lambda samples: hop(self._on_measured, samples),
            counted=lambda counts: hop(self._on_counted, counts),
        )

    def _on_ready(self, facts: "Facts") -> None:
        """The engine can serve, or knows its drafter better than before."""
        if self._status.state != "ready":
            self._set_state("ready", "", facts.card)
        attach = attachment(self._name, self._status.incarnation, facts)
        if self._lease is None:
            self._lease = Lease(self._policy, attach, self._on_gate)
            self._hold(self._lease.hold())
        else:
            self._lease.renew_as(attach)

    def _on_gate(self, gate: Gate) -> None:
        self._engine.put(SetGate(gate))

    def _on_measured(self, samples: list[Sample]) -> None:
        if self._lease is not None:
            for sample in samples:
                self._hold(self._lease.record(sample))

    def _on_counted(self, counts: Counts) -> None:
        if self._lease is not None:
            self._lease.counts = counts

    def _set_state(self, state: ModelState, detail: str, card: ModelCard | None = None) -> None:
        log.info("model_state", model=self._name, state=state, detail=detail)
        self._status = replace(self._status, state=state, detail=detail, card=card)
        for outbox in self._outboxes.values():
            outbox.put_status(self._status)
        self._send(self._scheduler.report, self._load_report())

    def _route(self, events: list[Event]) -> None:
        by_client: dict[str, list[Event]] = {}
        for event in events:
            client = self._clients.get(event.request_id)
            if client is None:
                continue
            by_client.setdefault(client, []).append(event)
            if isinstance(event, TERMINAL):
                del self._clients[event.request_id]
                self._send(self._scheduler.released, self._released(event.request_id))
        for client, batch in by_client.items():
            if (outbox := self._outboxes.get(client)) is not None:
                outbox.put_events(batch)

    def _released(self, request_id: RequestId) -> Released:
        return Released(model=self._name, incarnation=self._status.incarnation, request_id=request_id)

    def _load_report(self) -> LoadReport:
        return LoadReport(
            model=self._name,
            incarnation=self._status.incarnation,
            num_slots=self._config.num_slots if self._status.state == "ready" else 0,
            active=tuple(self._clients),
        )

    def _send(self, deliver: Callable[[_Message], Awaitable[None]], message: _Message) -> None:
        self._hold(_quietly(deliver, message))

    def _hold(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report_forever(self) -> None:
        while True:
            self._send(self._scheduler.report, self._load_report())
            await asyncio.sleep(_REPORT_PERIOD_S)


async def _quietly(deliver: Callable[[_Message], Awaitable[None]], message: _Message) -> None:
    """Await a report; the next one repeats what a lost one said, so a failure is only noted."""
    try:
        await asyncio.wait_for(deliver(message), _CALL_TIMEOUT_S)
    except Exception as error:  # Ray raises many types for a peer that is restarting
        log.debug("report_lost", error=type(error).__name__)
