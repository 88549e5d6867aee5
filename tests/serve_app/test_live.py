"""The app behind a real listener: the openai client, raw sockets and clients that hang up."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from messages.events import Failed
from messages.requests import RequestId
from messages.scheduling import Busy
from serve_app.backend import BusyError
from serve_app.config import HttpConfig
from serve_app.http import create_app
from tests.serve_app.fakes import HANG, FakeBackend

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@contextlib.asynccontextmanager
async def listening(backend: FakeBackend, config: HttpConfig) -> AsyncIterator[int]:
    """Serve on a free loopback port. The socket listens before the server runs, so nobody has to wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = uvicorn.Config(create_app(backend, config), log_config=None, access_log=False)
        server = uvicorn.Server(settings)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await task


@pytest.fixture
async def port(backend: FakeBackend) -> AsyncIterator[int]:
    """Port of a running server that wants the key sk-1."""
    async with listening(backend, HttpConfig(api_keys=("sk-1",))) as number:
        yield number


@pytest.fixture
async def client(port: int) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client, with retries off so that errors arrive."""
    base_url = f"http://127.0.0.1:{port}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-1", max_retries=0) as api:
        yield api


async def test_the_openai_client_runs_all_it_offers(backend: FakeBackend, client: openai.AsyncOpenAI) -> None:
    """Chat, completions, both streamed, logprobs, stop, models: one connection, one client."""
    chat = await client.chat.completions.create(model="tiny", messages=MESSAGES, stop=["END"], seed=5)
    assert chat.choices[0].message.content == "Hello world"
    assert chat.choices[0].finish_reason == "stop"
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 2
    assert (backend.requests[-1].stop, backend.requests[-1].sampling.seed) == (("END",), 5)

    scored = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    assert scored.choices[0].logprobs is not None
    tokens = scored.choices[0].logprobs.content or []
    assert [token.token for token in tokens] == ["Hello", " world"]
    assert [len(token.top_logprobs) for token in tokens] == [2, 2]

    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello world"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == len(backend.requests[-1].prompt) + 2

    text = await client.completions.create(model="tiny", prompt="hi", logprobs=1)
    assert text.choices[0].text == "Hello world"
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.text_offset == [0, 5]

    texts = await client.completions.create(model="tiny", prompt=[1, 2], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in texts]) == "Hello world"

    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).owned_by == "mtp-serve"


async def test_the_openai_client_sees_its_own_error_classes(
    backend: FakeBackend, client: openai.AsyncOpenAI, port: int
) -> None:
    """Each failure arrives as the exception its users already catch."""
    with pytest.raises(openai.BadRequestError, match="between 0 and 2; got 3"):
        await client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=3)
    with pytest.raises(openai.NotFoundError, match="gpt-4") as caught:
        await client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    assert caught.value.request_id is not None
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="no") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
    backend.script = (BusyError(Busy(queue_depth=32, retry_after_s=3)),)
    with pytest.raises(openai.InternalServerError) as busy:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    assert (busy.value.status_code, busy.value.response.headers["retry-after"]) == (503, "3")


async def test_the_openai_client_notices_a_model_that_dies(
    backend: FakeBackend, client: openai.AsyncOpenAI
) -> None:
    """The text so far arrives, then an APIError with our code."""
    backend.script = ("Hello", Failed(request_id=RequestId("r"), kind="worker_lost", message="gone"))
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    texts: list[str] = []

    async def read_all() -> None:
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError) as caught:
        await read_all()
    assert "".join(texts) == "Hello"
    assert caught.value.code == "worker_lost"


async def connect(port: int, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection with a completion request already sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-1\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    writer.write(head.encode() + payload)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [(HANG,), ("Hello", HANG)])
async def test_hanging_up_cancels_within_a_second(
    backend: FakeBackend, port: int, stream: bool, script: Any
) -> None:
    """Through a real socket, before and after the first token, streaming or not."""
    backend.script = script
    reader, writer = await connect(port, {"prompt": "hi", "stream": stream})
    await asyncio.wait_for(backend.started.wait(), 5)
    if stream and len(script) == 2:
        await asyncio.wait_for(reader.readuntil(b"Hello"), 5)
    writer.close()
    await asyncio.wait_for(backend.cancelled.wait(), 1)


async def test_a_large_body_is_answered_over_the_wire(port: int) -> None:
    """The client gets the 413 although the server did not read what it sent."""
    headers = {"authorization": "Bearer sk-1"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as http:
        for _ in range(2):
            response = await http.post("/v1/completions", content=b" " * (3 * 1024 * 1024))
            assert response.status_code == 413
        assert (await http.get("/v1/models")).status_code == 200


async def test_a_silent_stream_is_kept_alive_over_the_wire(backend: FakeBackend) -> None:
    """The comment reaches the client while the model thinks."""
    backend.script = ("Hello", HANG)
    async with listening(backend, HttpConfig(keep_alive_s=0.02)) as port:
        reader, writer = await connect(port, {"prompt": "hi", "stream": True})
        await asyncio.wait_for(reader.readuntil(b": keep-alive\n\n"), 5)
        writer.close()
        await asyncio.wait_for(backend.cancelled.wait(), 1)


async def test_a_connection_is_reused_after_errors_and_streams(backend: FakeBackend, port: int) -> None:
    """Every response is complete, so the next request on the connection is read correctly."""
    reader, writer = await connect(port, {"prompt": "hi", "stream": True})
    await asyncio.wait_for(reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n"), 5)
    for body, status in ((b"{", b"400"), (b'{"prompt": "hi"}', b"200")):
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-1\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 " + status)
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()
