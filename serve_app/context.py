"""What is known about one HTTP request while it runs: its ids, its outcome and its token counts."""

import re
import secrets
import time
from typing import cast

from starlette.types import Scope

REQUEST_ID_HEADER = b"x-request-id"
_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_SCOPE_KEY = "mtp_serve.context"
# What nginx logs for a client that went away before its response; it never travels.
CLIENT_CLOSED_REQUEST = 499


class RequestContext:
    """Mutable notes of one request, written by the layers it passes and read once at its end.

    `request_id` is the client's own when it sent a sane one, so it need not be unique; `unique` always is.
    """

    def __init__(self, client_request_id: bytes | None) -> None:
        self.unique = secrets.token_hex(16)
        sane = client_request_id is not None and _SANE_ID.fullmatch(client_request_id)
        self.request_id = client_request_id.decode() if client_request_id and sane else f"req_{self.unique}"
        self.client_key = ""
        self.reply_id: str | None = None
        self.status = CLIENT_CLOSED_REQUEST
        self.has_response_started = False
        self.is_response_complete = False
        self.error_code: str | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._started_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self._started_s


def attach(scope: Scope) -> RequestContext:
    """Make the context of an HTTP request and keep it with its scope."""
    context = RequestContext(header(scope, REQUEST_ID_HEADER))
    scope[_SCOPE_KEY] = context
    return context


def context_of(scope: Scope) -> RequestContext:
    """The context made when the request arrived."""
    return cast(RequestContext, scope[_SCOPE_KEY])


def header(scope: Scope, name: bytes) -> bytes | None:
    """First value of a request header; `name` in lower case."""
    return next((value for key, value in scope["headers"] if key == name), None)
