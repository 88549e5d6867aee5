"""Every way a request can fail and the one place that turns a failure into OpenAI's error envelope.

Knows no transport: it yields a status, headers and a JSON body, for a plain response and an SSE event alike.
"""

import msgspec

from messages.events import FailureKind


class ServeError(Exception):
    """A request that cannot be served: an HTTP status hint plus the four fields of OpenAI's error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        kind: str,
        code: str | None = None,
        param: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = headers


class ClientError(ServeError):
    """The client broke a rule; the message names the value and what is legal."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(
            message, status=status, kind="invalid_request_error", code=code, param=param, headers=headers
        )


class ServerError(ServeError):
    """Our fault or our limit; `retry_after_s` tells the client when to come back."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 500,
        kind: str = "server_error",
        code: str = "internal_error",
        retry_after_s: int | None = None,
    ) -> None:
        headers = () if retry_after_s is None else (("retry-after", str(max(1, retry_after_s))),)
        super().__init__(message, status=status, kind=kind, code=code, headers=headers)


class ClientDisconnectedError(Exception):
    """Nobody is listening any more; there is no response to write."""


_RETRY_AFTER_LOSS_S = 2

_FAILURES: dict[FailureKind, tuple[int, str, str]] = {
    "internal": (500, "internal_error", "The model failed while generating."),
    "worker_lost": (503, "worker_lost", "The model process ended while generating."),
    "worker_not_ready": (503, "worker_not_ready", "The model is not ready."),
    "shutting_down": (503, "shutting_down", "The server is shutting down."),
    "timeout": (504, "timeout", "The request ran past its time limit."),
}


def generation_failed(kind: FailureKind) -> ServerError:
    """The error for a generation that ended by a fault of ours; internals stay in the log."""
    status, code, message = _FAILURES[kind]
    retry_after_s = _RETRY_AFTER_LOSS_S if status == 503 else None
    return ServerError(message, status=status, code=code, retry_after_s=retry_after_s)


def error_body(error: ServeError, request_id: str) -> bytes:
    """JSON of the envelope; messages of 5xx name the request id, to match a report to the log."""
    message = error.message if error.status < 500 else f"{error.message} (request id: {request_id})"
    fields = {"message": message, "type": error.kind, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": fields})
