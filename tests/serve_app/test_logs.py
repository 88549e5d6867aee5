"""Structured logs."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import structlog

from messages.events import Failed
from messages.requests import RequestId
from serve_app.config import HttpConfig
from serve_app.context import RequestContext
from serve_app.http import create_app
from serve_app.logs import configure_logging, log_access, log_crash
from tests.serve_app.fakes import FakeBackend


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the logs of a test go; the process's own settings come back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    text = io.StringIO()
    configure_logging("info", text)
    yield text
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """The decoded log."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_access_line_says_what_happened(stream: io.StringIO) -> None:
    """Ids, route, status, duration and token counts."""
    context = RequestContext(b"abc")
    context.status, context.prompt_tokens, context.completion_tokens = 200, 5, 7
    log_access(context, "POST", "/v1/completions")
    (line,) = lines(stream)
    assert line["request_id"] == "abc"
    assert (line["method"], line["route"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["prompt_tokens"], line["completion_tokens"], line["level"]) == (5, 7, "info")
    assert line["duration_ms"] >= 0


def test_a_crash_is_located_without_quoting_it(stream: io.StringIO) -> None:
    """An exception's text may repeat the client's prompt."""
    try:
        raise KeyError("my secret prompt")
    except KeyError as error:
        log_crash(RequestContext(None), error)
    (line,) = lines(stream)
    assert line["error"] == "KeyError"
    assert "test_a_crash_is_located" in line["frames"][0]
    assert "my secret prompt" not in stream.getvalue()


def test_other_libraries_log_json_too(stream: io.StringIO) -> None:
    """A server error in plain text would break a log shipper."""
    try:
        raise ValueError("my secret prompt")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("failed for %s", "x")
    (line,) = lines(stream)
    assert (line["event"], line["logger"], line["error"]) == ("failed for x", "uvicorn.error", "ValueError")
    assert "my secret prompt" not in stream.getvalue()


def test_an_unknown_level_is_refused() -> None:
    """With the legal ones named."""
    with pytest.raises(ValueError, match="debug, info, warning, error; got 'loud'"):
        configure_logging("loud")


async def test_a_request_leaves_its_id_in_the_log_and_nothing_private(
    stream: io.StringIO, backend: FakeBackend
) -> None:
    """Neither the prompt, the reply nor the key, also when the engine or a defect ends it."""
    transport = httpx.ASGITransport(app=create_app(backend, HttpConfig(api_keys=("sk-secret",))))
    headers = {"authorization": "Bearer sk-secret", "x-request-id": "trace-7"}
    failed = Failed(request_id=RequestId("r"), kind="internal", message="kernel launch failed")
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        for script in (("private reply",), (failed,), (KeyError("private prompt"),)):
            backend.script = script
            await client.post("/v1/completions", json={"prompt": "private prompt"})
    logged = lines(stream)
    assert [line["event"] for line in logged] == [
        "request",
        "generation_failed",
        "request",
        "crash",
        "request",
    ]
    assert {line["request_id"] for line in logged} == {"trace-7"}
    assert [line["status"] for line in logged if line["event"] == "request"] == [200, 500, 500]
    assert logged[1]["detail"] == "kernel launch failed"
    assert "private" not in stream.getvalue()
    assert "sk-secret" not in stream.getvalue()
