"""The ingress deployment: a uvicorn listener inside the replica, in front of the HTTP app.

Listening here instead of behind Serve's proxy keeps that proxy off the token path. Owns the socket and the
graceful stop; knows no routes.
"""

import asyncio
import contextlib
import socket
from collections.abc import Generator

import uvicorn

from serve_app.config import HttpConfig
from serve_app.http import create_app
from serve_app.ray_backend import RayBackend


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process belongs to Serve."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Ingress:
    """Serves HTTP on one host and port until drained."""

    def __init__(self, config: HttpConfig, backend: RayBackend) -> None:
        """Listen at once; raises OSError when the port is taken. Needs a running event loop."""
        self._backend = backend
        self._app = create_app(backend, config)
        self._server = _Server(
            uvicorn.Config(
                self._app,
                log_config=None,
                access_log=False,
                timeout_keep_alive=30,
                lifespan="on",
            )
        )
        sock = _listen(config.host, config.port)
        loop = asyncio.get_running_loop()
        self._serving = loop.create_task(self._server.serve(sockets=[sock]))
        self._preparing = loop.create_task(self._prepare())

    async def drain(self, timeout_s: float) -> None:
        """Refuse new connections, let running requests finish for up to `timeout_s` seconds."""
        self._server.config.timeout_graceful_shutdown = max(1, int(timeout_s))
        self._server.should_exit = True
        await asyncio.wait([self._serving])

    async def model_state(self) -> dict[str, str]:
        """State, detail and name of the model as known here, for the process that deployed it."""
        status = self._backend.status()
        if status is None:
            return {"state": "loading", "detail": "starting the model process", "model": ""}
        name = status.card.model_id if status.card else ""
        state, detail = status.state, status.detail
        if state == "ready" and not self._preparing.done():
            state, detail = "loading", "building the tokenizer"
        return {"state": state, "detail": detail, "model": name}

    async def _prepare(self) -> None:
        """Build the tokenizer as soon as the model is there, so that the first request need not wait."""
        await self._backend.until_ready()
        await self._app.prepare()

    def check_health(self) -> None:
        """Raise when the listener or a reader has died, so that Serve replaces this replica."""
        if self._serving.done() and not self._server.should_exit:
            raise RuntimeError("the HTTP listener has ended")
        if not self._backend.readers_alive():
            raise RuntimeError("a background reader has ended")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    # A crashed ingress must get its port back at once.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.set_inheritable(True)
    return sock
