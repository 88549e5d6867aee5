"""Hardware labels that key verdicts, and the static per-hardware default that stands in for a measurement.

It composes labels from facts it is given; detecting the machine is somebody else's task.
"""

import re

from messages.policy import Hardware

_APPLE_BRAND = re.compile(r"Apple M(\d+)\b")
_APPLE_LABEL = re.compile(r"M(\d+)-\d+c")


def apple(brand: str, gpu_cores: int, architecture: str | None = None) -> Hardware:
    """An Apple GPU; `brand` is the chip name (`Apple M5 Max`). The label counts GPU cores: `M5-40c`."""
    match = _APPLE_BRAND.match(brand)
    generation = f"M{match[1]}" if match else "Unknown"
    return Hardware(
        label=f"{generation}-{gpu_cores}c",
        gpu_vendor="Apple",
        gpu_device=brand or None,
        gpu_architecture=architecture,
    )


def cuda(device: str | None = None, architecture: str | None = None) -> Hardware:
    """An Nvidia GPU: `cuda-sm_90-Unknown-0c`, without the architecture where none is published."""
    return Hardware(
        label=_prefixed("cuda", architecture),
        gpu_vendor="Nvidia",
        gpu_device=device,
        gpu_architecture=architecture,
    )


def rocm(device: str | None = None, architecture: str | None = None) -> Hardware:
    """An AMD GPU: `rocm-gfx1151-Unknown-0c`."""
    return Hardware(
        label=_prefixed("rocm", architecture),
        gpu_vendor="Amd",
        gpu_device=device,
        gpu_architecture=architecture,
    )


def cpu(architecture: str, cores: int) -> Hardware:
    """No GPU: `cpu-x86_64-Unknown-2c`."""
    return Hardware(label=f"cpu-{architecture}-Unknown-{cores}c")


def apple_generation(label: str) -> int | None:
    """The n of `Mn` in an Apple label, None for any other hardware."""
    match = _APPLE_LABEL.fullmatch(label)
    return int(match[1]) if match else None


def static_default(label: str, target_can_batch: bool) -> bool:
    """Whether to speculate when nothing was measured.

    A target that cannot batch has nothing to lose. Of the others, Apple generations from M3 on gain;
    M1, M2 and unknown hardware do not. Generations after M5 are grouped with M5.
    """
    if not target_can_batch:
        return True
    generation = apple_generation(label)
    return generation is not None and generation >= 3


def _prefixed(backend: str, architecture: str | None) -> str:
    return f"{backend}-{architecture}-Unknown-0c" if architecture else f"{backend}-Unknown-0c"
