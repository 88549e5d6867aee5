"""What computes here: backend, device and core counts, as facts. Labels for them are somebody else's task."""

import os
import platform
import re
import subprocess
import sys
from typing import Literal

import mlx.core as mx
from msgspec import Struct

Backend = Literal["metal", "cuda", "rocm", "cpu"]


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """The device MLX computes on. `gpu_cores` is 0 where nobody publishes it."""

    backend: Backend
    device_name: str | None
    architecture: str | None
    gpu_cores: int
    cpu_cores: int


def detect() -> DeviceFacts:
    """Look once, at load."""
    info = mx.device_info()
    name, architecture = (_text(info.get(key)) for key in ("device_name", "architecture"))
    backend = _backend()
    if backend == "metal":
        name = _run("sysctl", "-n", "machdep.cpu.brand_string") or name
    if backend == "cpu":
        architecture = platform.machine()
    return DeviceFacts(
        backend=backend,
        device_name=name,
        architecture=architecture,
        gpu_cores=_apple_gpu_cores() if backend == "metal" else 0,
        cpu_cores=os.cpu_count() or 1,
    )


def _backend() -> Backend:
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    if mx.metal.is_available():
        return "metal"
    return "rocm" if hasattr(mx, "rocm") else "cuda"


def _apple_gpu_cores() -> int:
    # MLX publishes no core count; the GPU's registry entry does.
    match = re.search(r'"gpu-core-count"\s*=\s*(\d+)', _run("ioreg", "-rc", "AGXAccelerator", "-d", "1"))
    return int(match[1]) if match else 0


def _run(*command: str) -> str:
    if sys.platform != "darwin":
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _text(value: object) -> str | None:
    return str(value) if value else None
