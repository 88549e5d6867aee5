"""One event-stream response: late start, whole events only, comments while nothing flows.

Knows neither what the events say nor where they come from.
"""

import asyncio

from starlette.types import Send

from serve_app.errors import ServeError, error_body
from serve_app.responses import DONE

KEEP_ALIVE = b": keep-alive\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Asks buffering front ends (nginx) to pass each event on at once.
    (b"x-accel-buffering", b"no"),
]


class SseResponse:
    """Writes events to one client. The response starts with the first write: an earlier failure can be plain.

    `keep_alive_s` is the longest silence on the line.
    """

    def __init__(self, send: Send, keep_alive_s: float) -> None:
        self._send = send
        self._keep_alive_s = keep_alive_s
        self._lock = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self._last_write_s = self._clock()
        self.has_started = False

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send one or more whole events."""
        # The keep-alive task writes too; without the lock its comment could overtake the response start.
        async with self._lock:
            if not self.has_started:
                self.has_started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
            self._last_write_s = self._clock()

    async def fail(self, error: ServeError, request_id: str) -> None:
        """Say explicitly that the stream broke, then end it."""
        event = b"".join((b"data: ", error_body(error, request_id), b"\n\n", DONE))
        await self.write(event, is_last=True)

    async def keep_alive(self) -> None:
        """Write a comment whenever the line was silent for too long; runs until cancelled."""
        while True:
            due_s = self._last_write_s + self._keep_alive_s - self._clock()
            if due_s > 0:
                await asyncio.sleep(due_s)
            else:
                await self.write(KEEP_ALIVE)
