"""Starts `mtp-serve serve` as a user would and finds the processes behind it."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

START_TIMEOUT_S = 120


def free_port() -> int:
    """A port nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def eventually(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition; fail when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition did not come about"
        time.sleep(0.05)


class LiveServer:
    """A running server process and a way to reach and hurt it."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        """Start with these command-line arguments; logs go to `folder`."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "serve.log"
        command = [sys.executable, "-m", "serve_app", "serve", "--port", str(self.port), *arguments]
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self._out = self.log.open("wb")
        self.process = subprocess.Popen(
            command,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            env=kept | {"MLXCEL_CACHE_DIR": str(folder / "cache")} | environment,
        )

    def wait_until(self, status: int) -> httpx.Response:
        """Poll /health until it answers with `status`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.tail()}")
            try:
                reply = httpx.get(f"{self.url}/health", timeout=5)
            except httpx.HTTPError:
                time.sleep(0.02)
                continue
            if reply.status_code == status:
                return reply
            time.sleep(0.05)
        self.close()
        raise TimeoutError(f"/health did not answer {status}:\n{self.tail()}")

    def replica(self, deployment: str) -> psutil.Process:
        """The process of a deployment's replica."""
        title = f"ServeReplica:mtp-serve:{deployment}"
        for process in psutil.Process(self.process.pid).children(recursive=True):
            if title in " ".join(process.cmdline()):
                return process
        raise LookupError(f"no process {title!r}:\n{self.tail()}")

    def kill(self, deployment: str) -> None:
        """SIGKILL a deployment's replica."""
        self.replica(deployment).kill()

    def terminate(self, timeout_s: float = 60) -> int:
        """SIGTERM and wait; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """Make sure nothing is left running."""
        tree = (
            psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        )
        if self.process.poll() is None:
            try:
                self.terminate(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for process in tree:
            if process.is_running():
                process.kill()
        self._out.close()

    def ray_address(self) -> str:
        """Where the server's Ray can be joined."""
        found = re.search(r"^Ray is at (\S+)", self.log.read_text(), re.MULTILINE)
        if found is None:
            raise LookupError(f"no Ray address in the log:\n{self.tail()}")
        return found[1]

    def tail(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-4000:]
