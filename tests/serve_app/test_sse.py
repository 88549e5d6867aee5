"""The event-stream response."""

import asyncio
from typing import Any

from serve_app.errors import ServerError
from serve_app.sse import KEEP_ALIVE, SseResponse


class Line:
    """Collects what a response sends."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.has_comment = asyncio.Event()

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        if message.get("body") == KEEP_ALIVE:
            self.has_comment.set()


async def test_the_response_starts_with_the_first_write() -> None:
    """Until then another answer is possible."""
    line = Line()
    sse = SseResponse(line.send, 15.0)
    assert not sse.has_started
    await sse.write(b"data: 1\n\n")
    await sse.write(b"data: 2\n\n", is_last=True)
    assert sse.has_started
    assert [message["type"] for message in line.messages] == [
        "http.response.start",
        "http.response.body",
        "http.response.body",
    ]
    headers = dict(line.messages[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert [message["more_body"] for message in line.messages[1:]] == [True, False]


async def test_a_silent_line_gets_comments() -> None:
    """Also before the first event, so that proxies do not give up on a long prompt."""
    line = Line()
    sse = SseResponse(line.send, 0.005)
    task = asyncio.create_task(sse.keep_alive())
    await asyncio.wait_for(line.has_comment.wait(), 5)
    task.cancel()
    assert line.messages[0]["type"] == "http.response.start"
    assert line.messages[1] == {"type": "http.response.body", "body": b": keep-alive\n\n", "more_body": True}


async def test_a_comment_never_overtakes_the_start_of_the_response() -> None:
    """Even when the transport stalls while the response starts."""
    line = Line()
    gate = asyncio.Event()

    async def stalling(message: Any) -> None:
        if message["type"] == "http.response.start":
            await gate.wait()
        await line.send(message)

    sse = SseResponse(stalling, 0.001)
    writing = asyncio.create_task(sse.write(b"data: 1\n\n"))
    ticking = asyncio.create_task(sse.keep_alive())
    for _ in range(5):
        await asyncio.sleep(0.002)
    gate.set()
    await writing
    ticking.cancel()
    assert line.messages[0]["type"] == "http.response.start"
    assert line.messages[1]["body"] == b"data: 1\n\n"


async def test_a_failure_is_an_event_and_then_the_end() -> None:
    """Clients that look only for the end marker and clients that look for errors both notice."""
    line = Line()
    sse = SseResponse(line.send, 15.0)
    await sse.write(b"data: 1\n\n")
    await sse.fail(ServerError("Gone.", status=503, code="worker_lost"), "req_1")
    assert line.messages[-1] == {
        "type": "http.response.body",
        "body": b'data: {"error":{"message":"Gone. (request id: req_1)","type":"server_error","param":null,'
        b'"code":"worker_lost"}}\n\ndata: [DONE]\n\n',
        "more_body": False,
    }
