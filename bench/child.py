"""Child processes of a benchmark: started apart, watched, and always taken down with all they started."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

from bench.errors import BenchError
from bench.process_tree import Process, descendants, processes

_TAIL_LINES = 25
_STOP_TIMEOUT_S = 45.0


class Child:
    """One running command whose output goes to `log`; a context manager that ends it.

    With `talks`, its standard input and output are pipes and only its standard error goes to the log.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        talks: bool = False,
    ) -> None:
        """Starts at once, in a session of its own so that a Ctrl-C at the terminal reaches only us."""
        self.name = name
        self._log = log
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else sink,
                stderr=sink,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ask(self, line: bytes) -> bytes:
        """Send one line and wait for the one that answers it. Raises BenchError when the child ends."""
        stdin, stdout = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        with suppress(BrokenPipeError):
            stdin.write(line + b"\n")
            stdin.flush()
        return self.answer(stdout)

    def answer(self, stdout: IO[bytes] | None = None) -> bytes:
        """Wait for one line of its standard output. Raises BenchError when the child ends instead."""
        line = (stdout or cast(IO[bytes], self._process.stdout)).readline()
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            self.check()
            raise BenchError(f"{self.name} closed its output{self._ending()}")
        return line

    def check(self) -> None:
        """Raise BenchError with the end of its log when the child has ended."""
        code = self._process.poll()
        if code is not None:
            raise BenchError(f"{self.name} ended with code {code}{self._ending()}")

    def tree(self) -> list[Process]:
        """The child and everything it started, as far as still alive."""
        return descendants(self._process.pid, processes())

    def stop(self) -> None:
        """End the child: SIGTERM, and SIGKILL for whatever of its tree outlives the time-out."""
        started = self.tree()
        try:
            with suppress(ProcessLookupError):
                self._process.terminate()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STOP_TIMEOUT_S)
        finally:
            # Also when a second Ctrl-C cuts the waiting short.
            _kill([*started, *self.tree()])
            self._process.wait()

    def _ending(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "; the end of its log:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def _kill(started: Sequence[Process]) -> None:
    alive = {(process.pid, process.started) for process in processes()}
    for process in started:
        if (process.pid, process.started) in alive:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def python(*arguments: str) -> list[str]:
    """A command that runs this interpreter."""
    return [sys.executable, *arguments]


def environment(**changes: str) -> dict[str, str]:
    """The environment for children: they import what this process imports, and may write byte code."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return inherited | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | changes


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
