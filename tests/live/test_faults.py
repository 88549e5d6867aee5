"""Disconnects, a full queue, and the death of each actor; these leave the shared server as they found it."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.live.conftest import PARALLEL, QUEUE
from tests.live.server import LiveServer, eventually

pytestmark = pytest.mark.serve


def body(max_tokens: int, stream: bool = True, prompt: str = "hello") -> dict:
    """A greedy completion that never ends early."""
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }


def queue(server: LiveServer) -> dict:
    """The scheduler's books as /health shows them."""
    return httpx.get(f"{server.url}/health", timeout=10).json()["queue"]


@pytest.fixture
def long_streams(server: LiveServer) -> Iterator[Callable[[int], None]]:
    """Opens streams that run until the test ends."""
    done = threading.Event()
    pool = ThreadPoolExecutor(PARALLEL + QUEUE)

    def hold() -> None:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body(480), timeout=60) as reply:
            for _ in reply.iter_lines():
                if done.is_set():
                    return

    yield lambda count: [pool.submit(hold) for _ in range(count)] and None
    done.set()
    pool.shutdown()
    eventually(lambda: queue(server)["slots_used"] == 0, 10)


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_frees_the_slot_within_a_second(server: LiveServer, stream: bool) -> None:
    """Closing the connection, streaming or not, before or after the first token, stops the generation."""
    patience = httpx.Timeout(5, read=5 if stream else 0.2)
    url = f"{server.url}/v1/completions"
    with (
        contextlib.suppress(httpx.ReadTimeout),
        httpx.stream("POST", url, json=body(480, stream), timeout=patience) as reply,
    ):
        next(reply.iter_raw())
    assert queue(server)["slots_used"] <= 1
    # One second for the stop itself, two for the books as /health republishes them.
    eventually(lambda: queue(server)["slots_used"] == 0, 3)


def test_a_full_queue_answers_503_with_retry_after(
    server: LiveServer, long_streams: Callable[[int], None]
) -> None:
    """Beyond slots and queue the server says when to come back, at once."""
    long_streams(PARALLEL + QUEUE)
    eventually(lambda: queue(server)["queue_depth"] == QUEUE, 10)
    started = time.monotonic()
    reply = httpx.post(f"{server.url}/v1/completions", json=body(4), timeout=10)
    assert time.monotonic() - started < 1
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.json()["error"]["code"] == "server_busy"


def test_health_answers_quickly_while_the_model_works(
    server: LiveServer, long_streams: Callable[[int], None]
) -> None:
    """With every slot busy, 95 of 100 health checks come back within 250 ms."""
    long_streams(PARALLEL)
    times: list[float] = []
    with httpx.Client(timeout=10) as client:
        for _ in range(100):
            started = time.monotonic()
            assert client.get(f"{server.url}/health").status_code == 200
            times.append(time.monotonic() - started)
    assert sorted(times)[94] < 0.25


def test_a_killed_model_ends_streams_with_an_error_event_and_comes_back(server: LiveServer) -> None:
    """Clients of a dead model get an explicit error; the policy endpoint answers; service returns."""
    lines: list[str] = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body(480), timeout=30) as reply:
        for line in reply.iter_lines():
            if not lines:
                server.kill("Model")
            lines += [line] if line else []
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "worker_lost"
    policy = httpx.get(f"{server.url}/v1/internal/mtp-policy")
    assert (policy.status_code, policy.json()["reason"]) == (200, "worker_not_ready")
    refused = httpx.post(f"{server.url}/v1/completions", json=body(4))
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    server.wait_until(200)
    assert (
        httpx.post(f"{server.url}/v1/completions", json=body(4, stream=False), timeout=30).status_code == 200
    )


def test_a_killed_scheduler_is_replaced_without_an_error(server: LiveServer) -> None:
    """Requests that arrive while the scheduler restarts are served a little later."""
    server.kill("Scheduler")
    reply = httpx.post(f"{server.url}/v1/completions", json=body(4, stream=False), timeout=60)
    assert reply.status_code == 200
    eventually(lambda: queue(server)["num_slots"] == PARALLEL, 20)


def test_a_killed_policy_is_never_seen_by_readers(server: LiveServer) -> None:
    """The policy endpoint keeps answering with a well-formed body while its actor is replaced."""
    before = httpx.get(f"{server.url}/v1/internal/mtp-policy").json()
    server.kill("Policy")
    for _ in range(60):
        reply = httpx.get(f"{server.url}/v1/internal/mtp-policy", timeout=2)
        assert reply.status_code == 200
        assert reply.json()["state"] == before["state"]
        time.sleep(0.1)


def test_a_killed_ingress_gets_its_port_back(server: LiveServer) -> None:
    """The listener returns on the same port."""
    server.kill("Ingress")
    time.sleep(0.5)
    server.wait_until(200)
    assert (
        httpx.post(f"{server.url}/v1/completions", json=body(4, stream=False), timeout=60).status_code == 200
    )


def test_sigterm_lets_running_requests_finish_and_exits_0(server: LiveServer) -> None:
    """A stream that is running at SIGTERM still gets its end; then the server is gone."""
    lines: list[str] = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body(300), timeout=60) as reply:
        for line in reply.iter_lines():
            if not lines:
                server.process.terminate()
            lines += [line] if line else []
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(60) == 0
