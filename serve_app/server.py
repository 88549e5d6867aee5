"""`mtp-serve serve`: starts Ray and the application, waits for the model, and stops in order.

The driver process does nothing else: requests never pass through it.
"""

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import structlog
from rich.console import Console

from configs.schema import Effective
from serve_app import cluster
from serve_app.logs import configure_logging
from serve_app.names import APP_NAME

log = structlog.get_logger()
screen = Console(highlight=False, soft_wrap=True)

_POLL_S = 0.3
_DRAIN_TIMEOUT_S = 30.0


class StartError(Exception):
    """The server cannot start; the message says why and what would help."""


def run(effective: Effective, address: str | None) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit code.

    Raises StartError before anything has been started.
    """
    settings = effective.settings
    configure_logging()
    _check_port(settings.http.host, settings.http.port)
    _log_settings(effective)
    stop = threading.Event()
    _stop_on_signals(stop)
    screen.print("starting Ray (about 15 seconds) ...")
    try:
        screen.print(f"Ray is at {_connect(address)}")
        # Ray installs handlers of its own when it starts.
        _stop_on_signals(stop)
        return 0 if stop.is_set() else _serve(effective, stop)
    finally:
        screen.print("stopping ...")
        cluster.disconnect()


def _connect(address: str | None) -> str:
    try:
        return cluster.connect(address)
    except ConnectionError as error:
        raise StartError(f"no Ray cluster can be joined at {address!r}: {error}") from error


def _serve(effective: Effective, stop: threading.Event) -> int:
    from ray import serve  # noqa: PLC0415 - after its environment

    from serve_app.build import application  # noqa: PLC0415

    settings = effective.settings
    handle = serve.run(application(settings), name=APP_NAME, route_prefix=None, blocking=False)
    # This process has no event loop of its own for the handle's router to run in.
    handle._init(_run_router_in_separate_loop=True)
    ingress = handle.options(_by_reference=False)
    for detail in _until_ready(ingress, stop):
        screen.print(detail)
    state = _state(ingress)
    if not stop.is_set() and state["state"] == "failed":
        screen.print(f"mtp-serve: {state['detail']}")
        return 1
    if not stop.is_set():
        screen.print(
            f"[bold]serving {state['model']}[/bold] at http://{settings.http.host}:{settings.http.port}/v1"
        )
    stop.wait()
    screen.print("draining: running requests may finish, new ones are refused")
    ingress.drain.remote(_DRAIN_TIMEOUT_S).result(timeout_s=_DRAIN_TIMEOUT_S + 5)
    return 0


def _until_ready(ingress: Any, stop: threading.Event) -> Iterator[str]:
    """Yield each new loading step until the model is ready, has failed, or a stop was asked for."""
    shown = ""
    while not stop.wait(_POLL_S):
        state = _state(ingress)
        if state["state"] in ("ready", "failed"):
            return
        if state["detail"] and state["detail"] != shown:
            shown = state["detail"]
            yield f"  {shown} ..."


def _state(ingress: Any) -> dict[str, str]:
    return ingress.model_state.remote().result(timeout_s=30)


def _stop_on_signals(stop: threading.Event) -> None:
    def on_signal(number: int, _frame: object) -> None:
        if stop.is_set():
            # A second signal means "now".
            sys.exit(128 + number)
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)


def _check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StartError(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port or --host"
            ) from error


def _log_settings(effective: Effective) -> None:
    """One log line with every setting and where it came from, and one for each name that decides nothing."""
    settings = effective.settings
    sections: dict[str, dict[str, Any]] = {}
    for section in settings.__struct_fields__:
        part = getattr(settings, section)
        values = (
            part.public()
            if hasattr(part, "public")
            else {n: getattr(part, n) for n in part.__struct_fields__}
        )
        sections[section] = {
            name: {"value": value, "source": effective.sources.get(f"{section}.{name}", "default")}
            for name, value in values.items()
        }
    log.info("settings", **sections)
    for name in effective.unread:
        log.warning("environment_name_not_read", name=name, reason="no setting of this server has that name")
