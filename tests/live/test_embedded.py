"""The embedded model, real weights and all: what `make serve` gives a newcomer."""

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.live.server import LiveServer, eventually

pytestmark = [pytest.mark.serve, pytest.mark.slow]

PROMPTS = ("What is the capital of France?", "Write a short story about a fox.", "Explain rain to a child.")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server started without any argument but its port."""
    live = LiveServer(tmp_path_factory.mktemp("embedded"))
    live.wait_until(200)
    yield live
    live.close()


def chat(server: LiveServer, prompt: str, **changes: object) -> dict:
    """A greedy answer of at most 32 tokens."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 32, "temperature": 0} | changes
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).json()


def test_it_answers_sensibly_at_once(server: LiveServer) -> None:
    """While the exactness probe may still be running, requests are served."""
    reply = chat(server, PROMPTS[0])
    assert "Paris" in reply["choices"][0]["message"]["content"]
    assert reply["choices"][0]["finish_reason"] == "stop"


def test_speculation_is_byte_identical_on_real_weights(server: LiveServer) -> None:
    """Once the probe has found exact kernels, text, reason and usage do not depend on speculation."""

    def policy() -> dict:
        return httpx.get(f"{server.url}/v1/internal/mtp-policy", timeout=5).json()

    eventually(lambda: policy()["reason"] != "exactness_pending", 280)
    body = policy()
    assert body["exact"] is True
    if sys.platform == "linux":
        # The row kernels give a row the bytes it has alone, so nothing has to be padded.
        assert any((Path(server.log.parent) / "cache" / "blas").glob("row-blas-*.so"))
        assert body["selection"] == "default"
    for prompt in PROMPTS[1:]:
        on, off = (chat(server, prompt, speculative=choice) for choice in (True, False))
        assert on["timings"]["draft_rounds"] > 0
        assert "draft_rounds" not in off["timings"]
        assert on["choices"] == off["choices"]
        # The second request finds the first one's prompt in the cache, which usage tells.
        assert on["usage"]["total_tokens"] == off["usage"]["total_tokens"]
