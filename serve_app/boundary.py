"""The outermost layer of the app: request ids, authorisation, errors to envelopes, access log and metrics.

Knows no route. Nothing an inner layer raises gets past it except cancellation.
"""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.auth import KeyRing, authorise
from serve_app.context import REQUEST_ID_HEADER, RequestContext, attach, header
from serve_app.errors import ClientDisconnectedError, ClientError, ServeError, ServerError, error_body
from serve_app.logs import log_access, log_crash
from serve_app.metrics import Metrics
from serve_app.plain import send_json

_UNMATCHED = "unmatched"


class Boundary:
    """Wraps an ASGI app; lifespan messages pass through."""

    def __init__(self, app: ASGIApp, keys: KeyRing, metrics: Metrics) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = attach(scope)
        try:
            await self._serve(scope, receive, _noting(send, context), context)
        finally:
            route = getattr(scope.get("route"), "path", _UNMATCHED)
            log_access(context, scope["method"], route)
            self._metrics.request_finished(route, context.status, context.elapsed_s, context.error_code)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, context: RequestContext) -> None:
        try:
            peer = scope.get("client") or ("unknown", 0)
            context.client_key = authorise(
                self._keys, scope["path"], header(scope, b"authorization"), peer[0]
            )
            await self._app(scope, receive, send)
        except ClientDisconnectedError:
            context.error_code = "client_disconnected"
        except ServeError as error:
            await _respond(send, error, context)
        except HTTPException as error:
            await _respond(send, _from_router(error, scope), context)
        # The boundary: a defect anywhere inside must become an answer, not a dropped connection.
        except Exception as error:
            log_crash(context, error)
            await _respond(send, ServerError("The server made an error."), context)


def _noting(send: Send, context: RequestContext) -> Send:
    """Add the request id to the response and note its progress."""

    async def noting(message: Message) -> None:
        if message["type"] == "http.response.start":
            context.has_response_started = True
            context.status = message["status"]
            message["headers"] = [*message["headers"], (REQUEST_ID_HEADER, context.request_id.encode())]
        elif not message.get("more_body", False):
            context.is_response_complete = True
        await send(message)

    return noting


async def _respond(send: Send, error: ServeError, context: RequestContext) -> None:
    context.error_code = error.code or f"http_{error.status}"
    if context.has_response_started:
        # Too late for a status. Returning without the end of the body makes the server cut the connection.
        return
    await send_json(send, error_body(error, context.request_id), error.status, error.headers)


def _from_router(error: HTTPException, scope: Scope) -> ClientError:
    headers = tuple((error.headers or {}).items())
    path = scope["path"][:200]
    if error.status_code == 405:
        message = f"{scope['method']} is not allowed on {path}; allowed: {dict(headers).get('Allow', '')}."
        return ClientError(message, status=405, code="method_not_allowed", headers=headers)
    return ClientError(
        f"There is no {path} here.", status=error.status_code, code="not_found", headers=headers
    )
