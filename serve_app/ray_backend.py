"""The HTTP layer's backend over Ray Serve handles.

Owns the streams an ingress keeps open (model events, policy snapshots) and the newest value of each; knows no
HTTP. Everything except `generate` answers from local values, so a dead actor never blocks a reader.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace
from ray.serve.handle import DeploymentHandle

from messages.events import TERMINAL, Event, Failed
from messages.model import EventBatch, ModelMessage, ModelStatus
from messages.policy import PolicyReport, PolicySnapshot
from messages.requests import GenerateRequest, RequestId
from messages.scheduling import Admit, AdmitReply, Busy, SchedulerLoad
from policy import wire
from serve_app.backend import BusyError
from serve_app.errors import generation_failed

log = structlog.get_logger()

T = TypeVar("T")

_CALL_TIMEOUT_S = 10.0
_SILENCE_S = 10.0
_RECONNECT_S = 0.2
_LOAD_PERIOD_S = 1.0
_ADMIT_RETRIES = 2


class RayBackend:
    """One ingress's view of the served model."""

    def __init__(
        self, model: DeploymentHandle, scheduler: DeploymentHandle, policy: DeploymentHandle
    ) -> None:
        """Starts the background readers, so it must be constructed on a running event loop.

        They start here and not on demand: a task started inside a request would be cancelled with it.
        """
        self.client_id = uuid.uuid4().hex
        # By value over gRPC; the default goes through the object store and costs several milliseconds a call.
        self._model = model.options(_by_reference=False)
        self._scheduler = scheduler.options(_by_reference=False)
        self._policy = policy.options(_by_reference=False)
        self._status: ModelStatus | None = None
        self._snapshot: PolicySnapshot | None = None
        self._load: SchedulerLoad | None = None
        self._boxes: dict[RequestId, asyncio.Queue[Event]] = {}
        self._ready = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._readers = [
            self._spawn(reader()) for reader in (self._read_model, self._read_policy, self._poll_scheduler)
        ]

    def status(self) -> ModelStatus | None:
        """Newest known state of the model."""
        return self._status

    async def until_ready(self) -> None:
        """Wait until a replica is ready to serve."""
        await self._ready.wait()

    def load(self) -> SchedulerLoad | None:
        """Newest known books of the scheduler."""
        return self._load

    def policy_body(self) -> dict[str, Any]:
        """Body of the policy endpoint from the newest snapshot and this ingress's own view of the model."""
        return wire.body(self._visible_snapshot())

    def policy_mirror(self) -> dict[str, Any]:
        """The same in the shape `/health` shows."""
        return wire.health_mirror(self._visible_snapshot())

    def pairings(self) -> tuple[PolicyReport, ...]:
        """The newest reports known; counters do not go back to nothing while a model restarts."""
        return self._snapshot.pairings if self._snapshot is not None else ()

    def readers_alive(self) -> bool:
        """Whether every background reader still runs."""
        return not any(reader.done() for reader in self._readers)

    async def generate(self, request: GenerateRequest, admit: Admit) -> AsyncGenerator[Event, None]:
        """Admit and run one request; closing the generator cancels it wherever it is."""
        request_id = request.request_id
        box: asyncio.Queue[Event] = asyncio.Queue()
        self._boxes[request_id] = box
        ended = False
        try:
            await self._admit(admit)
            accepted = await asyncio.wait_for(self._model.submit.remote(request), _CALL_TIMEOUT_S)
            if not accepted:
                raise generation_failed("worker_not_ready")
            while not ended:
                event = await box.get()
                ended = isinstance(event, TERMINAL)
                yield event
        except TimeoutError as error:
            raise generation_failed("worker_lost") from error
        finally:
            del self._boxes[request_id]
            if not ended:
                self._spawn(_quietly(self._model.abort.remote(request_id)))
                self._spawn(_quietly(self._scheduler.withdraw.remote(request_id)))

    async def _admit(self, admit: Admit) -> None:
        for attempt in range(_ADMIT_RETRIES + 1):
            try:
                reply: AdmitReply = await self._scheduler.admit.remote(admit)
            except Exception as error:  # Ray raises many types when the scheduler dies under a waiting call
                log.warning("admission_lost", request_id=admit.request_id, error=type(error).__name__)
                if attempt == _ADMIT_RETRIES:
                    raise generation_failed("worker_lost") from error
                continue
            if isinstance(reply, Busy):
                raise BusyError(reply)
            return

    def _visible_snapshot(self) -> PolicySnapshot:
        ready = self._status is not None and self._status.state == "ready"
        if ready and self._snapshot is not None:
            return self._snapshot
        return wire.worker_not_ready()

    async def _read_model(self) -> None:
        while True:
            try:
                stream = self._model.options(stream=True).events.remote(self.client_id)
                async for message in _with_timeout(stream, _SILENCE_S):
                    self._on_model_message(message)
            except Exception as error:  # any end of this stream means the same: the replica is gone
                log.warning("model_stream_lost", error=type(error).__name__)
            self._lose_model()
            await asyncio.sleep(_RECONNECT_S)

    def _on_model_message(self, message: ModelMessage) -> None:
        match message:
            case ModelStatus():
                self._status = message
                if message.state == "ready":
                    self._ready.set()
                else:
                    self._ready.clear()
            case EventBatch(events=events):
                for event in events:
                    if (box := self._boxes.get(event.request_id)) is not None:
                        box.put_nowait(event)
            case _:
                pass

    def _lose_model(self) -> None:
        self._ready.clear()
        if self._status is not None:
            self._status = replace(
                self._status, state="loading", detail="the model process ended; waiting for its restart"
            )
        for request_id, box in self._boxes.items():
            box.put_nowait(
                Failed(request_id=request_id, kind="worker_lost", message="the model process ended")
            )

    async def _read_policy(self) -> None:
        while True:
            try:
                stream = self._policy.options(stream=True).watch.remote()
                async for snapshot in _with_timeout(stream, _SILENCE_S):
                    self._on_snapshot(snapshot)
            except Exception as error:  # keep the last snapshot and try again
                log.warning("policy_stream_lost", error=type(error).__name__)
            await asyncio.sleep(_RECONNECT_S)

    def _on_snapshot(self, snapshot: PolicySnapshot) -> None:
        # A restarted policy knows no model until they attach again; what it said before is still true.
        if snapshot.top.reason == "worker_not_ready" and self._snapshot is not None:
            return
        self._snapshot = snapshot

    async def _poll_scheduler(self) -> None:
        while True:
            try:
                self._load = await asyncio.wait_for(self._scheduler.load.remote(), _CALL_TIMEOUT_S)
            except Exception as error:  # shown as the last known books until it is back
                log.debug("scheduler_load_lost", error=type(error).__name__)
            await asyncio.sleep(_LOAD_PERIOD_S)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


async def _quietly(call: Awaitable[Any]) -> None:
    try:
        await asyncio.wait_for(call, _CALL_TIMEOUT_S)
    except Exception as error:  # the replica may be gone, and with it what was to be cancelled
        log.debug("cancel_lost", error=type(error).__name__)


async def _with_timeout(stream: Any, seconds: float) -> AsyncGenerator[Any, None]:
    iterator = stream.__aiter__()
    while True:
        try:
            item = await asyncio.wait_for(iterator.__anext__(), seconds)
        except StopAsyncIteration:
            return
        yield item
