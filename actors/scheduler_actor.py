"""The scheduler: holds the admission books and the futures of waiting requests. It never sees a token."""

import asyncio
import math
import time

from actors import admission
from actors.admission import Books
from actors.config import SchedulerConfig
from messages.requests import RequestId
from messages.scheduling import Admit, AdmitReply, Busy, LoadReport, Released, SchedulerLoad, Ticket

_TICK_S = 0.5


class SchedulerActor:
    """Admits requests to model replicas, in order of lane, fairness and arrival."""

    def __init__(self, config: SchedulerConfig) -> None:
        """Starts the housekeeping task, so it must be constructed on a running event loop."""
        self._config = config
        self._books = Books()
        self._futures: dict[RequestId, asyncio.Future[Ticket]] = {}
        self._housekeeping = asyncio.get_running_loop().create_task(self._expire_forever())

    async def admit(self, request: Admit) -> AdmitReply:
        """Wait for a slot; the caller's cancellation takes the request out of the queue."""
        books = admission.enqueue(self._books, request, self._config.max_queue_depth)
        if books is None:
            load = await self.load()
            return Busy(queue_depth=load.queue_depth, retry_after_s=self._retry_after_s(load))
        future: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._futures[request.request_id] = future
        self._update(books)
        try:
            return await future
        except asyncio.CancelledError:
            self._update(admission.withdraw(self._books, request.request_id))
            raise
        finally:
            self._futures.pop(request.request_id, None)

    async def withdraw(self, request_id: RequestId) -> None:
        """Give back a ticket that will not be used."""
        self._update(admission.withdraw(self._books, request_id))

    async def released(self, message: Released) -> None:
        """A replica's slot became free."""
        self._update(admission.release(self._books, message))

    async def report(self, message: LoadReport) -> None:
        """A replica's own account of its load."""
        self._update(admission.reconcile(self._books, message, time.monotonic()))

    async def load(self) -> SchedulerLoad:
        """The current books in four numbers."""
        return admission.load(self._books, self._config.max_queue_depth)

    def check_health(self) -> None:
        """Raise when housekeeping has died, so that Serve replaces this replica."""
        if self._housekeeping.done():
            raise RuntimeError("the scheduler's housekeeping task has ended")

    def _update(self, books: Books) -> None:
        self._books, tickets = admission.dispatch(books, time.monotonic())
        for ticket in tickets:
            future = self._futures.get(ticket.request_id)
            if future is not None and not future.done():
                future.set_result(ticket)

    def _retry_after_s(self, load: SchedulerLoad) -> int:
        # Without a history of service times, a queue's worth of slots is the only honest scale.
        return max(1, math.ceil(load.queue_depth / max(1, load.num_slots)))

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            config = self._config
            self._update(
                admission.expire(
                    self._books, time.monotonic(), config.claim_timeout_s, config.report_timeout_s
                )
            )
