"""Waiting until a server knows whether it can speculate."""

from typing import Any

import pytest

from bench.client import Client
from bench.errors import BenchError
from bench.readiness import wait_for_drafter
from tests.bench.fake_server import Answer, serving

PENDING: dict[str, Any] = {"state": "unavailable", "reason": "exactness_pending", "mtp_enabled": False}
PROFILING: dict[str, Any] = {"state": "profiling", "reason": None, "mtp_enabled": True}


def test_a_running_probe_is_waited_for() -> None:
    """Two answers say that it runs, the third that it has finished."""
    bodies = iter([PENDING, PENDING])

    def answer(path: str, _: dict[str, Any]) -> Answer:
        assert path == "/v1/internal/mtp-policy"
        return 200, next(bodies, PROFILING)

    with serving(answer) as url:
        wait_for_drafter(Client(url), lambda: None)
    assert next(bodies, None) is None


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("exactness_pending", "has not finished yet"), ("worker_not_ready", "not ready yet")],
)
def test_waiting_has_an_end(reason: str, expected: str) -> None:
    """The sentence says what did not come about."""
    body = PENDING | {"reason": reason}
    with serving(lambda *_: (200, body)) as url, pytest.raises(BenchError, match=expected):
        wait_for_drafter(Client(url), lambda: None, {reason: 0.0})


def test_a_server_that_dies_meanwhile_ends_the_waiting() -> None:
    """Its own complaint is what the user reads."""

    def check() -> None:
        raise BenchError("it died")

    with serving(lambda *_: (200, PENDING)) as url, pytest.raises(BenchError, match="it died"):
        wait_for_drafter(Client(url), check)
