"""The read-only endpoints and what every response has in common."""

import asyncio

import httpx
import msgspec
import pytest

from messages.model import ModelCard, ModelState, ModelStatus
from serve_app.config import HttpConfig
from serve_app.errors import ServerError
from serve_app.http import HttpApp, create_app
from tests.serve_app.fakes import FakeBackend, ready


def client_of(backend: FakeBackend, config: HttpConfig) -> httpx.AsyncClient:
    """A client of an app with other settings than the fixture's."""
    transport = httpx.ASGITransport(app=create_app(backend, config))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def in_state(state: ModelState, detail: str = "") -> ModelStatus:
    """A model that cannot serve."""
    return ModelStatus(model="Model-0", incarnation="1", state=state, detail=detail)


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
async def test_health_of_a_ready_model(client: httpx.AsyncClient, path: str) -> None:
    """200 with the policy's mirror and the queue."""
    response = await client.get(path)
    assert response.status_code == 200
    assert response.json() == {
        "status": "ok",
        "model": "tiny",
        "detail": "",
        "observability": {"mtp_policy": {"status": "unavailable", "reason": "no_mtp_dispatch"}},
        "queue": {"queue_depth": 1, "max_queue_depth": 32, "slots_used": 2, "num_slots": 4},
    }


@pytest.mark.parametrize(
    ("status", "shown", "detail"),
    [
        (None, "loading", ""),
        (in_state("loading", "weights 3/10"), "loading", "weights 3/10"),
        (in_state("failed", "/home/me/model: no such file"), "failed", ""),
        (in_state("draining"), "draining", ""),
    ],
)
async def test_health_of_a_model_that_cannot_serve(
    backend: FakeBackend, client: httpx.AsyncClient, status: ModelStatus | None, shown: str, detail: str
) -> None:
    """503 with a full body; what failed may name local paths and stays out of this public answer."""
    backend.state, backend.books = status, None
    response = await client.get("/health")
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    body = response.json()
    assert (body["status"], body["detail"], body["model"], body["queue"]) == (shown, detail, None, None)
    assert body["observability"]["mtp_policy"]["status"] == "unavailable"


@pytest.mark.parametrize("status", [None, in_state("loading"), in_state("failed"), in_state("draining")])
async def test_the_policy_endpoint_answers_in_every_state(
    backend: FakeBackend, client: httpx.AsyncClient, status: ModelStatus | None
) -> None:
    """A consumer polls it unconditionally."""
    backend.state = status
    response = await client.get("/v1/internal/mtp-policy")
    assert (response.status_code, response.json()) == (200, backend.policy_body())


@pytest.mark.parametrize("path", ["/internal/mtp-policy", "/mtp-policy", "/v1/mtp-policy"])
async def test_the_policy_endpoint_has_no_other_name(client: httpx.AsyncClient, path: str) -> None:
    """Consumers can rely on the version in the path."""
    response = await client.get(path)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


async def test_models_are_listed_under_every_name(backend: FakeBackend) -> None:
    """The served name first, then the checkpoint's and the aliases."""
    config = HttpConfig(served_model_name="org/chat", model_aliases=("small",))
    async with client_of(backend, config) as client:
        listed = (await client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [entry["id"] for entry in listed["data"]] == ["org/chat", "tiny", "small"]
        for name in ("org/chat", "org%2Fchat", "tiny", "small"):
            assert (await client.get(f"/v1/models/{name}")).json() == {
                "id": name.replace("%2F", "/"),
                "object": "model",
                "created": 1_700_000_000,
                "owned_by": "mtp-serve",
                "max_model_len": 256,
            }


async def test_an_unknown_model_is_not_found(client: httpx.AsyncClient) -> None:
    """The answer names the model that is there."""
    response = await client.get("/v1/models/gpt-4")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'gpt-4'" in error["message"]
    assert "'tiny'" in error["message"]


async def test_models_while_loading(backend: FakeBackend, client: httpx.AsyncClient) -> None:
    """An empty list, and no verdict yet about a name."""
    backend.state = None
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": []}
    assert (await client.get("/v1/models/tiny")).status_code == 503


async def test_unknown_paths_and_methods_get_the_envelope(client: httpx.AsyncClient) -> None:
    """Also where the router answers by itself."""
    missing = await client.get("/v2/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (await client.get("/health/")).status_code == 404
    wrong = await client.get("/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nowhere", "/v1/completions", "/metrics"])
async def test_every_response_carries_a_request_id(client: httpx.AsyncClient, path: str) -> None:
    """The client's own when it is sane, a fresh one otherwise."""
    own = await client.get(path, headers={"x-request-id": "trace-1.a:b_C"})
    assert own.headers["x-request-id"] == "trace-1.a:b_C"
    fresh = {(await client.get(path)).headers["x-request-id"] for _ in range(2)}
    assert len(fresh) == 2


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, 'a"b', "a\tb", "é"])
async def test_a_strange_request_id_is_replaced(client: httpx.AsyncClient, sent: str) -> None:
    """Ids end up in logs and headers."""
    response = await client.get("/health", headers={"x-request-id": sent.encode()})
    assert response.headers["x-request-id"].startswith("req_")


async def test_keys_guard_everything_but_health(backend: FakeBackend) -> None:
    """A missing path is guarded too, so nothing can be mapped without a key."""
    async with client_of(backend, HttpConfig(api_keys=("sk-1", "sk-2"))) as client:
        for path in ("/v1/models", "/v1/internal/mtp-policy", "/metrics", "/nowhere"):
            for headers in ({}, {"authorization": "Bearer sk-3"}):
                response = await client.get(path, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
                assert response.headers["x-request-id"]
        assert (await client.post("/v1/completions", json={})).status_code == 401
        assert (await client.get("/health")).status_code == 200
        allowed = await client.get("/v1/models", headers={"authorization": "Bearer sk-2"})
        assert allowed.status_code == 200


async def test_metrics_count_requests_by_route_pattern(client: httpx.AsyncClient) -> None:
    """Made-up paths do not become labels."""
    await client.get("/v1/models/a")
    await client.get("/v1/models/b")
    await client.get("/nowhere/1")
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert 'mtp_serve_requests_total{route="/v1/models/{name:path}",status="404"} 2.0' in response.text
    assert 'mtp_serve_requests_total{route="unmatched",status="404"} 1.0' in response.text
    assert 'mtp_serve_errors_total{code="model_not_found"} 2.0' in response.text
    assert "mtp_serve_queue_depth 1.0" in response.text


async def test_a_defect_becomes_a_plain_500(
    backend: FakeBackend, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback and no exception text, but the request id."""

    def broken() -> None:
        raise RuntimeError("inner secret")

    monkeypatch.setattr(backend, "policy_body", broken)
    response = await client.get("/v1/internal/mtp-policy", headers={"x-request-id": "trace-1"})
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "The server made an error. (request id: trace-1)"
    assert "secret" not in response.text


async def test_prepare_builds_the_tokenizer_of_a_ready_model(backend: FakeBackend, app: HttpApp) -> None:
    """And says so when there is nothing to prepare yet."""
    await app.prepare()
    backend.state = None
    with pytest.raises(ServerError, match="loading"):
        await app.prepare()


async def test_lifespan_is_answered(app: HttpApp) -> None:
    """Servers ask for it at start and stop."""
    incoming = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[str] = []

    async def receive() -> dict[str, str]:
        return next(incoming)

    async def send(message: dict[str, str]) -> None:
        sent.append(message["type"])

    await asyncio.wait_for(app({"type": "lifespan", "state": {}}, receive, send), 5)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_a_status_that_loses_its_card_is_not_ready(
    backend: FakeBackend, client: httpx.AsyncClient, card: ModelCard
) -> None:
    """Without a card there is nothing to tokenise with."""
    backend.state = msgspec.structs.replace(ready(card), card=None)
    assert (await client.get("/health")).status_code == 503
