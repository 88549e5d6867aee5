"""What is told of the device, on a machine that need not be there."""

import mlx.core as mx
import pytest

from engine import device

REGISTRY = '  | {\n  |   "IOClass" = "AGXAcceleratorG17X"\n  |   "gpu-core-count" = 40\n  | }'


def answers(name: str, *arguments: str) -> str:
    """A Mac's tools."""
    return {"sysctl": "Apple M5 Max", "ioreg": REGISTRY}[name]


def test_a_mac_is_told_by_its_chip_and_its_gpu_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's own registry entry counts its cores; the number of CPU cores is another fact."""
    monkeypatch.setattr(device, "_backend", lambda: "metal")
    monkeypatch.setattr(device, "_run", answers)
    monkeypatch.setattr(mx, "device_info", lambda: {"architecture": "applegpu_g17s"})
    monkeypatch.setattr(device.os, "cpu_count", lambda: 18)
    found = device.detect()
    assert (found.device_name, found.architecture) == ("Apple M5 Max", "applegpu_g17s")
    assert (found.gpu_cores, found.cpu_cores) == (40, 18)


def test_a_mac_that_tells_nothing_has_no_known_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not guessed."""
    monkeypatch.setattr(device, "_backend", lambda: "metal")
    monkeypatch.setattr(device, "_run", lambda *command: "")
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple GPU"})
    found = device.detect()
    assert (found.device_name, found.gpu_cores) == ("Apple GPU", 0)
