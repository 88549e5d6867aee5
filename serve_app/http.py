"""The ASGI app of the ingress: its routes, the read-only endpoints, and how the parts are put together.

Knows neither Ray nor MLX; every answer about the world comes from the backend.
"""

from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from serve_app.auth import KeyRing
from serve_app.backend import Backend
from serve_app.boundary import Boundary
from serve_app.catalog import health_status, model_object, require_name, require_ready, served_names
from serve_app.config import HttpConfig
from serve_app.generation import CHAT, COMPLETION, GenerationEndpoint
from serve_app.metrics import Metrics
from serve_app.tokenizer import Encoders


class HttpApp:
    """The app as an object, which is what Ray Serve's ingress wrapper asks for."""

    def __init__(self, backend: Backend, config: HttpConfig) -> None:
        self._backend = backend
        self._config = config
        self._encoders = Encoders()
        self._metrics = Metrics()
        router = Router(routes=self._routes(), redirect_slashes=False)
        self._app = Boundary(router, KeyRing(config.api_keys), self._metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Present, it makes the router raise for unknown paths and methods instead of answering in plain text.
        scope["app"] = self
        await self._app(scope, receive, send)

    async def prepare(self) -> None:
        """Build the tokenizer of a ready model before the first request needs it.

        Raises ServerError as a request would while the model is not ready or its tokenizer is unusable.
        """
        await self._encoders.get(require_ready(self._config, self._backend.status()))

    def _routes(self) -> list[Route]:
        parts = (self._backend, self._config, self._encoders, self._metrics)
        return [
            Route("/v1/chat/completions", GenerationEndpoint(CHAT, *parts), methods=["POST"]),
            Route("/v1/completions", GenerationEndpoint(COMPLETION, *parts), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/v1/internal/mtp-policy", self._policy),
            Route("/health", self._health),
            Route("/v1/health", self._health),
            Route("/metrics", self._metrics_page),
        ]

    async def _models(self, _: Request) -> Response:
        status = self._backend.status()
        card = status.card if status is not None and status.state == "ready" else None
        data = [model_object(name, card) for name in served_names(self._config, card)] if card else []
        return _json({"object": "list", "data": data})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        card = require_ready(self._config, self._backend.status())
        require_name(self._config, card, name)
        return _json(model_object(name, card))

    async def _policy(self, _: Request) -> Response:
        return _json(self._backend.policy_body())

    async def _health(self, _: Request) -> Response:
        status = self._backend.status()
        load = self._backend.load()
        condition = health_status(status)
        body = {
            "status": condition,
            "model": self._model_name(),
            # What went wrong may name paths of this machine and this answer is public; it is in the log.
            "detail": status.detail if status is not None and status.state != "failed" else "",
            "observability": {"mtp_policy": self._backend.policy_mirror()},
            "queue": None if load is None else msgspec.structs.asdict(load),
        }
        if condition == "ok":
            return _json(body)
        return _json(body, 503, {"retry-after": str(self._config.loading_retry_s)})

    async def _metrics_page(self, _: Request) -> Response:
        text = self._metrics.render(self._backend.load(), self._backend.pairings())
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    def _model_name(self) -> str | None:
        status = self._backend.status()
        card = status.card if status is not None else None
        return self._config.served_model_name or (card.model_id if card is not None else None)


def create_app(backend: Backend, config: HttpConfig) -> HttpApp:
    """The ASGI app serving one backend. It starts nothing by itself and may be made outside an event loop."""
    return HttpApp(backend, config)


def _json(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
