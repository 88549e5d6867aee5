"""Both generating endpoints in process: what reaches the backend and what comes back."""

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest

from messages.events import Cancelled, DraftTimings, Failed, TokensEmitted
from messages.model import ModelState, ModelStatus
from messages.requests import RequestId
from messages.scheduling import Busy
from serve_app.backend import BusyError
from serve_app.config import HttpConfig
from serve_app.http import HttpApp, create_app
from tests.serve_app.fakes import CONTEXT_LENGTH, HANG, Exchange, FakeBackend, sse_events

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
ENDPOINTS = [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]
RID = RequestId("x")
BROKEN = Failed(request_id=RID, kind="worker_lost", message="exit code -9")


async def test_a_chat_reply(backend: FakeBackend, client: httpx.AsyncClient) -> None:
    """Ids, counts and names are those of the request and the card."""
    response = await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 5, "seed": 3})
    assert response.status_code == 200
    body = response.json()
    (request,), (admit,) = backend.requests, backend.admits
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello world", "refusal": None}
    assert (body["object"], body["model"], body["id"]) == ("chat.completion", "tiny", request.request_id)
    assert body["id"].startswith("chatcmpl-")
    assert body["usage"]["prompt_tokens"] == len(request.prompt)
    assert (request.max_tokens, request.sampling.seed, request.client) == (5, 3, "ingress-1")
    assert (admit.request_id, admit.client_key) == (request.request_id, "addr:127.0.0.1")


async def test_a_text_reply(backend: FakeBackend, client: httpx.AsyncClient) -> None:
    """Token ids go through as they are and need no tokenizer."""
    response = await client.post("/v1/completions", json={**TEXT, "prompt": [5, 6, 7]})
    assert response.json()["choices"][0]["text"] == "Hello world"
    assert response.json()["id"].startswith("cmpl-")
    assert backend.requests[0].prompt == (5, 6, 7)
    assert backend.requests[0].max_tokens == CONTEXT_LENGTH - 3


async def test_a_streamed_chat(client: httpx.AsyncClient) -> None:
    """Role, text, finish with timings, usage, end."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    response = await client.post("/v1/chat/completions", json={**CHAT, **options})
    assert response.headers["content-type"].startswith("text/event-stream")
    role, *texts, finish, usage, done = sse_events(response.content)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"]["content"] for chunk in texts] == ["Hello", " world"]
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert finish["timings"]["predicted_n"] == 2
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in (role, *texts, finish, usage)}) == 1


async def test_a_streamed_completion(client: httpx.AsyncClient) -> None:
    """Text, finish, end; no usage unless asked for."""
    response = await client.post("/v1/completions", json={**TEXT, "stream": True, "logprobs": 1})
    *texts, finish, done = sse_events(response.content)
    assert [chunk["choices"][0]["text"] for chunk in texts] == ["Hello", " world"]
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in texts] == [[0], [5]]
    assert "usage" not in finish
    assert done == "[DONE]"


async def test_steps_without_text_send_nothing(backend: FakeBackend, client: httpx.AsyncClient) -> None:
    """Half a character or a possible stop string is still open; its token counts all the same."""
    open_step = TokensEmitted(request_id=RID, text="", token_ids=(1,))
    backend.script = (open_step, "é", open_step)
    response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    role, text, finish, _ = sse_events(response.content)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert text["choices"][0]["delta"]["content"] == "é"
    assert finish["choices"][0]["finish_reason"] == "stop"


async def test_a_reply_of_no_text_still_has_a_role(backend: FakeBackend, client: httpx.AsyncClient) -> None:
    """The first token may be the end of the turn."""
    backend.script = ()
    response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    role, finish, _ = sse_events(response.content)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert finish["choices"][0]["finish_reason"] == "stop"


async def test_speculation_shows_in_the_timings(backend: FakeBackend, client: httpx.AsyncClient) -> None:
    """On the whole body and on the chunk with the finish reason."""
    backend.draft = DraftTimings(draft_n=9, draft_n_accepted=6, draft_rounds=3, draft_kind="mtp")
    whole = (await client.post("/v1/chat/completions", json=CHAT)).json()
    streamed = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    finish = sse_events(streamed.content)[-2]
    for timings in (whole["timings"], finish["timings"]):
        assert (timings["draft_n"], timings["draft_n_accepted"], timings["draft_rounds"]) == (9, 6, 3)


async def test_every_event_of_the_model_is_sent_on_its_own(
    backend: FakeBackend, client: httpx.AsyncClient
) -> None:
    """A round of several tokens is one chunk; nothing is split and nothing waits for the end."""
    rounds = [("Hel", (1, 2, 3)), ("lo", (4, 5)), (" world", (6, 7, 8, 9))]
    backend.script = [TokensEmitted(request_id=RID, text=text, token_ids=ids) for text, ids in rounds]
    response = await client.post("/v1/completions", json={**TEXT, "stream": True})
    *texts, _, _ = sse_events(response.content)
    assert [chunk["choices"][0]["text"] for chunk in texts] == [text for text, _ in rounds]


IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        {"response_format": {"type": "json_object"}},
        {"grammar": "root ::= [a-z]"},
        {"messages": IMAGE},
        {"mirostat": 2},
        {"dynatemp_range": 0.5},
    ],
)
async def test_what_plain_decode_cannot_do_either_is_refused_not_served_plainly(
    backend: FakeBackend, client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    """Differs from the original, which serves these without speculation: here no lane has a grammar, images
    or these samplers, so an answer would ignore what was asked for."""
    response = await client.post("/v1/chat/completions", json={**CHAT, **fields})
    assert (response.status_code, backend.requests) == (400, [])


@pytest.mark.parametrize("name", ["thinking_budget", "thinking_budget_tokens", "reasoning_budget"])
async def test_there_is_no_thinking_budget(
    backend: FakeBackend, client: httpx.AsyncClient, name: str
) -> None:
    """Differs from the original, which closes a chain of thought that grows too long: here it is text like
    any other, ended by `max_tokens` or a stop string, and a budget is refused rather than ignored."""
    response = await client.post("/v1/chat/completions", json={**CHAT, name: 64})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    assert backend.requests == []


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (BusyError(Busy(queue_depth=32, retry_after_s=4)), 503, "server_busy"),
        (BROKEN, 503, "worker_lost"),
        (Failed(request_id=RID, kind="internal", message="Traceback: secret"), 500, "internal_error"),
        (Cancelled(request_id=RID), 503, "cancelled"),
        (RuntimeError("secret"), 500, "internal_error"),
    ],
)
async def test_a_failure_before_any_text_is_a_plain_response(
    backend: FakeBackend,
    client: httpx.AsyncClient,
    *,
    path: str,
    body: dict[str, Any],
    stream: bool,
    failure: Any,
    status: int,
    code: str,
) -> None:
    """Streaming or not, the client gets a status it can act on and the request id."""
    backend.script = (failure,)
    response = await client.post(path, json={**body, "stream": stream})
    assert response.status_code == status
    error = response.json()["error"]
    assert error["code"] == code
    assert response.headers["x-request-id"] in error["message"]
    assert "secret" not in response.text
    if code == "server_busy":
        assert response.headers["retry-after"] == "4"


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (BROKEN, "worker_lost"),
        (RuntimeError("secret"), "internal_error"),
        (Cancelled(request_id=RID), "cancelled"),
    ],
)
async def test_a_failure_mid_stream_is_an_event(
    backend: FakeBackend,
    client: httpx.AsyncClient,
    *,
    path: str,
    body: dict[str, Any],
    failure: Any,
    code: str,
) -> None:
    """What was generated stands, then the error, then the end."""
    backend.script = ("Hello", failure)
    response = await client.post(path, json={**body, "stream": True})
    assert response.status_code == 200
    *_, text, error, done = sse_events(response.content)
    assert "Hello" in json.dumps(text)
    assert error["error"]["code"] == code
    assert response.headers["x-request-id"] in error["error"]["message"]
    assert done == "[DONE]"
    assert "secret" not in response.text
    metrics = (await client.get("/metrics")).text
    assert f'mtp_serve_errors_total{{code="{code}"}} 1.0' in metrics


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_of_events_that_just_ends_is_a_failure(
    backend: FakeBackend, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """A reply without a finish must not look complete."""

    async def silent(*_: object) -> Any:
        return
        yield

    monkeypatch.setattr(backend, "generate", silent)
    response = await client.post("/v1/completions", json={**TEXT, "stream": stream})
    assert response.status_code == 500


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (None, "worker_not_ready"),
        ("loading", "worker_not_ready"),
        ("failed", "worker_not_ready"),
        ("draining", "shutting_down"),
    ],
)
async def test_a_model_that_cannot_serve(
    backend: FakeBackend, client: httpx.AsyncClient, state: ModelState | None, code: str
) -> None:
    """503 with a time to come back; nothing reaches the backend."""
    backend.state = ModelStatus(model="Model-0", incarnation="1", state=state) if state else None
    response = await client.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (503, code)
    assert response.headers["retry-after"] == "2"
    assert backend.requests == []


async def test_names_of_the_model(backend: FakeBackend) -> None:
    """Any served name or none is accepted and answered under the first; others are not found."""
    config = HttpConfig(served_model_name="chat", model_aliases=("small",))
    transport = httpx.ASGITransport(app=create_app(backend, config))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for name in ("chat", "small", "tiny", None):
            response = await client.post("/v1/completions", json={"model": name, "prompt": "x"})
            assert response.json()["model"] == "chat"
        response = await client.post("/v1/completions", json={"model": "gpt-4", "prompt": "x"})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
        assert "'chat'" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 3},
        {"top_logprobs": 4},
        {"messages": []},
        {"messages": [{"role": "tool", "content": "4"}]},
        {"messages": [{"role": "user", "content": "x" * CONTEXT_LENGTH}]},
        {"tools": [{"type": "function"}]},
        {"nonsense": 1},
    ],
)
async def test_bad_requests_never_reach_the_backend(
    backend: FakeBackend, client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    """Each is a 400 in the envelope."""
    response = await client.post("/v1/chat/completions", json={**CHAT, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert backend.requests == []


async def test_a_prompt_beyond_the_context_names_both_numbers(client: httpx.AsyncClient) -> None:
    """So the client knows how much to cut."""
    response = await client.post("/v1/completions", json={"prompt": "x" * 300})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "300 tokens" in error["message"]
    assert "256 tokens" in error["message"]


async def test_a_body_over_the_limit_is_refused(backend: FakeBackend) -> None:
    """413 in the envelope."""
    transport = httpx.ASGITransport(app=create_app(backend, HttpConfig(max_body_bytes=2048)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post("/v1/completions", content=b" " * 2049)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200


async def test_requests_with_the_same_trace_id_stay_apart(
    backend: FakeBackend, client: httpx.AsyncClient
) -> None:
    """A client's own id is for its logs; inside, every request has its own."""
    for _ in range(2):
        await client.post("/v1/completions", json=TEXT, headers={"x-request-id": "same"})
    first, second = backend.requests
    assert first.request_id != second.request_id
    assert first.sampling.seed != second.sampling.seed


async def test_the_fairness_key_is_the_index_of_the_api_key(backend: FakeBackend) -> None:
    """Never the key itself."""
    transport = httpx.ASGITransport(app=create_app(backend, HttpConfig(api_keys=("sk-1", "sk-2"))))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        await client.post("/v1/completions", json=TEXT, headers={"authorization": "Bearer sk-2"})
    assert backend.admits[0].client_key == "key:1"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [(HANG,), ("Hello", HANG)])
async def test_a_client_that_leaves_ends_its_generation(
    backend: FakeBackend, app: HttpApp, stream: bool, script: Any
) -> None:
    """Before and after the first token, streaming or not; the access log has it as 499 or cut short."""
    backend.script = script
    exchange = Exchange(app, "/v1/completions", msgspec.json.encode({**TEXT, "stream": stream}))
    await asyncio.wait_for(backend.started.wait(), 5)
    if stream and len(script) == 2:
        assert (await exchange.next_message())["type"] == "http.response.start"
    exchange.leave()
    await asyncio.wait_for(backend.cancelled.wait(), 1)
    await exchange.finish()


async def test_a_client_that_stops_reading_and_leaves_ends_its_generation(
    backend: FakeBackend, app: HttpApp
) -> None:
    """The app is then stuck in a write, not waiting for the model."""
    backend.script = ("Hello", " world", HANG)
    body = msgspec.json.encode({**TEXT, "stream": True})
    exchange = Exchange(app, "/v1/completions", body, window=1)
    await asyncio.wait_for(backend.started.wait(), 5)
    while not exchange.sent.full():
        await asyncio.sleep(0)
    exchange.leave()
    await exchange.finish()
    assert backend.cancelled.is_set()


async def test_a_finished_generation_is_not_cancelled(backend: FakeBackend, app: HttpApp) -> None:
    """Closing the stream of events after its end means nothing."""
    exchange = Exchange(app, "/v1/completions", msgspec.json.encode({**TEXT, "stream": True}))
    await exchange.finish()
    assert not backend.cancelled.is_set()


async def test_a_stopping_server_cancels_what_runs(backend: FakeBackend, app: HttpApp) -> None:
    """When the whole request task is cancelled."""
    backend.script = ("Hello", HANG)
    exchange = Exchange(app, "/v1/completions", msgspec.json.encode({**TEXT, "stream": True}))
    await exchange.next_message()
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    assert backend.cancelled.is_set()


async def test_a_long_wait_for_the_first_token_is_kept_alive(backend: FakeBackend) -> None:
    """The stream then starts with a comment, and a failure after that is an event."""
    backend.script = (HANG,)
    app = create_app(backend, HttpConfig(keep_alive_s=0.005))
    exchange = Exchange(app, "/v1/chat/completions", msgspec.json.encode({**CHAT, "stream": True}))
    assert (await exchange.next_message())["status"] == 200
    assert (await exchange.next_message())["body"] == b": keep-alive\n\n"
    exchange.leave()
    await exchange.finish()
    assert backend.cancelled.is_set()
