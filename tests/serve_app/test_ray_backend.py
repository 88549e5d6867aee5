"""What an ingress says of the policy while its peers come and go; no Ray is running here."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from messages.model import ModelCard, ModelStatus
from messages.policy import PolicyReport, PolicySnapshot
from policy.wire import worker_not_ready
from serve_app.ray_backend import RayBackend
from tests.serve_app.fakes import ready

SETTLED = PolicySnapshot(
    version=2, top=PolicyReport(state="settled", verdict="enable", mtp_enabled=True, samples=4)
)


class Unreachable:
    """A handle whose deployment never answers."""

    def options(self, **_: object) -> "Unreachable":
        """Itself."""
        return self

    def __getattr__(self, _: str) -> Any:
        raise ConnectionError("nobody there")


@pytest.fixture
async def backend() -> AsyncIterator[RayBackend]:
    """A backend that has heard of nobody."""
    built = RayBackend(*[Unreachable()] * 3)  # pyright: ignore[reportArgumentType]
    yield built
    for task in built._background:
        task.cancel()


def said(backend: RayBackend) -> tuple[object, ...]:
    """State, reason and gate in the body."""
    body = backend.policy_body()
    return body["state"], body["reason"], body["mtp_enabled"]


NOT_READY = ("unavailable", "worker_not_ready", None)


async def test_until_the_model_is_ready_nothing_is_claimed(backend: RayBackend, card: ModelCard) -> None:
    """Neither before anyone reported, nor while the model loads, nor before the policy has spoken."""
    assert said(backend) == NOT_READY
    assert (backend.policy_body()["samples"], backend.policy_body()["samples_required"]) == (0, 4)
    backend._on_snapshot(SETTLED)
    backend._on_model_message(ModelStatus(model="m", incarnation="1", state="loading"))
    assert said(backend) == NOT_READY
    backend._on_model_message(ready(card))
    assert said(backend) == ("settled", None, True)
    assert backend.policy_mirror()["status"] == "settled"


async def test_a_lost_model_is_not_ready_and_a_lost_policy_is_not_noticed(
    backend: RayBackend, card: ModelCard
) -> None:
    """What a restarted policy says before models attach again takes nothing back."""
    backend._on_model_message(ready(card))
    backend._on_snapshot(SETTLED)
    backend._on_snapshot(worker_not_ready(version=3))
    assert said(backend) == ("settled", None, True)
    backend._lose_model()
    assert said(backend) == NOT_READY
