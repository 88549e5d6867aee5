"""Per-ingress outgoing mail: whatever has gathered since the last look goes out as one message."""

import asyncio
from collections.abc import AsyncIterator

from messages.events import Event
from messages.model import EventBatch, Heartbeat, ModelMessage, ModelStatus


class Outbox:
    """Messages waiting for one ingress; status replaces status, events gather."""

    def __init__(self, status: ModelStatus) -> None:
        """The first message out is the status at the time of connecting."""
        self._status: ModelStatus | None = status
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._wake.set()

    def put_status(self, status: ModelStatus) -> None:
        """Replace an unsent status; only the newest matters."""
        self._status = status
        self._wake.set()

    def put_events(self, events: list[Event]) -> None:
        """Add events in order."""
        self._events += events
        self._wake.set()

    async def messages(self, heartbeat_s: float) -> AsyncIterator[ModelMessage]:
        """Yield messages as they come, and a heartbeat after `heartbeat_s` of silence, forever."""
        while True:
            try:
                await asyncio.wait_for(self._wake.wait(), heartbeat_s)
            except TimeoutError:
                yield Heartbeat()
                continue
            self._wake.clear()
            status, self._status = self._status, None
            events, self._events = self._events, []
            if status is not None:
                yield status
            if events:
                yield EventBatch(events=tuple(events))
