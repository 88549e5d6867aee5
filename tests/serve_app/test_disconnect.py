"""Bodies with a limit, and work that ends with its client."""

import asyncio
from typing import Any

import pytest

from serve_app.context import RequestContext
from serve_app.disconnect import read_body, until_disconnect
from serve_app.errors import ClientDisconnectedError, ClientError


class Incoming:
    """A client that sends some messages and then stays connected until it leaves."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = list(messages)
        self._left = asyncio.Event()
        self.num_reads = 0

    def leave(self) -> None:
        self._left.set()

    async def __call__(self) -> dict[str, Any]:
        self.num_reads += 1
        if self._messages:
            return self._messages.pop(0)
        await self._left.wait()
        return {"type": "http.disconnect"}


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    """One piece of a request body."""
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_pieces_is_whole() -> None:
    """Up to and including the limit."""
    receive = Incoming(part(b"abc", more=True), part(b"de"))
    assert await read_body({"headers": []}, receive, 5) == b"abcde"


@pytest.mark.parametrize("length", [b"6", b"9" * 5000])
async def test_a_declared_size_over_the_limit_is_refused_unread(length: bytes) -> None:
    """Nothing is read of what will not be used."""
    receive = Incoming(part(b"abcdef"))
    with pytest.raises(ClientError) as caught:
        await read_body({"headers": [(b"content-length", length)]}, receive, 5)
    assert (caught.value.status, receive.num_reads) == (413, 0)


async def test_an_undeclared_size_over_the_limit_is_refused_early() -> None:
    """Reading stops at the piece that exceeds the limit."""
    receive = Incoming(part(b"abc", more=True), part(b"def", more=True), part(b"x" * 10**6))
    with pytest.raises(ClientError, match="limit is 5") as caught:
        await read_body({"headers": []}, receive, 5)
    assert (caught.value.status, receive.num_reads) == (413, 2)


async def test_leaving_during_the_upload_ends_it() -> None:
    """There is nobody to answer."""
    receive = Incoming(part(b"abc", more=True))
    receive.leave()
    with pytest.raises(ClientDisconnectedError):
        await read_body({"headers": []}, receive, 5)


async def test_work_is_cancelled_when_the_client_leaves() -> None:
    """And has tidied up by the time the caller hears of it."""
    receive = Incoming()
    has_tidied = False

    async def work() -> None:
        nonlocal has_tidied
        receive.leave()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            has_tidied = True

    with pytest.raises(ClientDisconnectedError):
        await until_disconnect(RequestContext(None), receive, work())
    assert has_tidied


async def test_the_end_of_a_complete_response_is_no_disconnect() -> None:
    """Servers report one after the last byte; what the work still has to do is then finished in peace."""
    receive = Incoming()
    context = RequestContext(None)
    steps: list[str] = []

    async def work() -> None:
        context.is_response_complete = True
        receive.leave()
        for _ in range(5):
            await asyncio.sleep(0)
        steps.append("done")

    await until_disconnect(context, receive, work())
    assert steps == ["done"]


async def test_an_error_of_the_work_comes_through() -> None:
    """The disconnect watch does not hide it."""

    async def work() -> None:
        raise ClientError("no")

    with pytest.raises(ClientError, match="no"):
        await until_disconnect(RequestContext(None), Incoming(), work())


async def test_cancelling_the_caller_cancels_the_work() -> None:
    """A server that stops leaves no generation behind."""
    is_cancelled = asyncio.Event()
    has_begun = asyncio.Event()

    async def work() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    caller = asyncio.create_task(until_disconnect(RequestContext(None), Incoming(), work()))
    await has_begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert is_cancelled.is_set()
