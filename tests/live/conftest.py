"""One server with the tiny model for all live tests; the tests that kill things come last."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.live.server import LiveServer

PARALLEL, QUEUE = 8, 4


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with 8 slots and a queue of 4."""
    live = LiveServer(
        tmp_path_factory.mktemp("live"),
        *("--model", str(tiny_checkpoint), "--served-model-name", "tiny"),
        *("--parallel", str(PARALLEL), "--max-queue-depth", str(QUEUE)),
    )
    live.wait_until(200)
    yield live
    live.close()


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    """The official client, without retries that would hide errors."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as built:
        yield built
