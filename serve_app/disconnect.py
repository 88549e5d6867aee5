"""Reading a bounded body and noticing, at any moment, that the client has gone. Knows no routes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive, Scope

from serve_app.context import RequestContext, header
from serve_app.errors import ClientDisconnectedError, ClientError


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole request body.

    Raises ClientError 413 beyond `max_bytes`, as soon as that is known, and ClientDisconnectedError.
    """
    declared = header(scope, b"content-length") or b""
    # An absurd number of digits is too large whatever it says; int() would refuse it.
    if declared.isdigit() and (len(declared) > 18 or int(declared) > max_bytes):
        raise _too_large(f"{declared.decode()[:18]} bytes", max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise _too_large(f"more than {max_bytes} bytes", max_bytes)
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


async def until_disconnect(
    context: RequestContext, receive: Receive, work: Coroutine[Any, Any, None]
) -> None:
    """Run `work`, cancelled as soon as the client goes away; the body must have been read.

    Raises what `work` raises, and ClientDisconnectedError when it was cut short.
    """
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        # Servers report a disconnect after a complete response too; what is left then is only tidying up.
        if context.is_response_complete:
            await asyncio.wait((worker,))
        if not worker.done():
            raise ClientDisconnectedError
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)
    worker.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(size: str, max_bytes: int) -> ClientError:
    return ClientError(
        f"The body has {size}; the limit is {max_bytes}.", status=413, code="request_too_large"
    )
