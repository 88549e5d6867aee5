"""What the HTTP layer asks of the world behind it; it knows no actors, only these calls."""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from messages.events import Event
from messages.model import ModelStatus
from messages.policy import PolicyReport
from messages.requests import GenerateRequest
from messages.scheduling import Admit, Busy, SchedulerLoad
from serve_app.errors import ServerError


class BusyError(ServerError):
    """No slot and no room in the queue."""

    def __init__(self, busy: Busy) -> None:
        super().__init__(
            f"The queue is full ({busy.queue_depth} requests waiting). Try again later.",
            status=503,
            kind="server_busy",
            code="server_busy",
            retry_after_s=busy.retry_after_s,
        )
        self.busy = busy


# The events of one request up to a terminal one; closing it cancels the request.
EventStream = AsyncGenerator[Event, None]


class Backend(Protocol):
    """A served model seen from the ingress.

    Only `generate` waits for anything; the other calls return the newest value held locally and never raise.
    """

    @property
    def client_id(self) -> str:
        """The stream over which this ingress receives events."""
        ...

    def status(self) -> ModelStatus | None:
        """Newest known state of the model; None until a replica has reported."""
        ...

    def policy_body(self) -> dict[str, Any]:
        """Body of the policy endpoint, well formed in every state."""
        ...

    def policy_mirror(self) -> dict[str, Any]:
        """The same state in the shape `/health` shows."""
        ...

    def pairings(self) -> tuple[PolicyReport, ...]:
        """The policy's newest report on each pairing that is served."""
        ...

    def load(self) -> SchedulerLoad | None:
        """Newest known books of the scheduler."""
        ...

    def generate(self, request: GenerateRequest, admit: Admit) -> EventStream:
        """Admit and run one request.

        The first step raises `BusyError` when there is no room. Closing the stream cancels the request, and
        does nothing after a terminal event.
        """
        ...
