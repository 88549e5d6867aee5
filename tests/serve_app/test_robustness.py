"""Whatever a client sends, the answer is an envelope and never our fault."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.model import ModelCard
from serve_app.config import HttpConfig
from serve_app.http import create_app
from serve_app.openai_schema import ChatBody, CompletionBody
from tests.serve_app.fakes import FakeBackend, ready

FIELDS = sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, "tools", "n", "echo", "x"})

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**63) - 1, 10**40])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "x"]), "content": st.text() | JSON}
    ),
    max_size=3,
)
BODIES = st.fixed_dictionaries(
    {}, optional={"messages": MESSAGES | JSON, "prompt": st.text() | st.lists(st.integers()) | JSON}
).flatmap(
    lambda base: st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4).map(lambda more: {**more, **base})
)
RELAXED = settings(deadline=None, max_examples=100)
Ask = Callable[[str, bytes], httpx.Response]


@pytest.fixture(scope="module")
def ask(card: ModelCard) -> Iterator[Ask]:
    """Posts a body to one app and waits for the answer; every example meets the same app."""
    app = create_app(FakeBackend(ready(card)), HttpConfig())
    with asyncio.Runner() as runner:
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")
        yield lambda path, body: runner.run(client.post(path, content=body))


def check(response: httpx.Response) -> None:
    """A reply, or an error of the client's with everything the envelope promises."""
    assert response.headers["x-request-id"]
    assert "Traceback" not in response.text
    if response.status_code != 200:
        assert 400 <= response.status_code < 500
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@RELAXED
@given(body=BODIES)
def test_no_json_object_is_our_fault(ask: Ask, path: str, body: dict[str, Any]) -> None:
    """Known fields with values of any kind."""
    check(ask(path, json.dumps(body).encode()))


@RELAXED
@given(body=st.binary(max_size=64) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_are_our_fault(ask: Ask, body: bytes) -> None:
    """JSON or not."""
    check(ask("/v1/chat/completions", body))


def test_a_plain_request_is_answered(ask: Ask) -> None:
    """The checks above would also hold for an app that refuses everything."""
    assert ask("/v1/completions", b'{"prompt": "x"}').status_code == 200
