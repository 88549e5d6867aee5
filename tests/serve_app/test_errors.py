"""The error envelope."""

import json

import pytest

from messages.events import FailureKind
from messages.scheduling import Busy
from serve_app.backend import BusyError
from serve_app.errors import ClientError, ServeError, ServerError, error_body, generation_failed


def test_a_client_error_is_the_envelope_openai_uses() -> None:
    """All four fields are present and the message is the plain one."""
    error = ClientError("top_k must be at least -1; got -2.", param="top_k", code="out_of_range")
    assert json.loads(error_body(error, "req_1")) == {
        "error": {
            "message": "top_k must be at least -1; got -2.",
            "type": "invalid_request_error",
            "param": "top_k",
            "code": "out_of_range",
        }
    }


def test_a_server_error_names_the_request_id() -> None:
    """A report from a user can be matched to the log."""
    assert "req_42" in json.loads(error_body(ServerError("Broken."), "req_42"))["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("internal", 500, "internal_error"),
        ("worker_lost", 503, "worker_lost"),
        ("worker_not_ready", 503, "worker_not_ready"),
        ("shutting_down", 503, "shutting_down"),
        ("timeout", 504, "timeout"),
    ],
)
def test_every_failure_kind_has_a_status_and_a_code(kind: FailureKind, status: int, code: str) -> None:
    """What can be retried elsewhere or later is a 503 with Retry-After, the rest is not."""
    error = generation_failed(kind)
    assert (error.status, error.code) == (status, code)
    assert ("retry-after" in dict(error.headers)) == (status == 503)


def test_a_full_queue_says_when_to_come_back() -> None:
    """The scheduler's estimate becomes Retry-After, at least one second."""
    error = BusyError(Busy(queue_depth=32, retry_after_s=7))
    assert (error.status, error.code, dict(error.headers)) == (503, "server_busy", {"retry-after": "7"})
    assert dict(BusyError(Busy(queue_depth=1, retry_after_s=0)).headers) == {"retry-after": "1"}


def test_both_children_are_serve_errors() -> None:
    """One except clause catches every deliberate failure."""
    assert issubclass(ClientError, ServeError)
    assert issubclass(BusyError, ServerError)
