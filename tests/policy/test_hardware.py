"""Hardware labels and the static default behind them."""

import pytest

from messages.policy import Hardware
from policy import hardware


def test_an_apple_label_holds_generation_and_gpu_cores() -> None:
    """The chip's generation and its GPU core count; the original counted performance CPU cores instead."""
    assert hardware.apple("Apple M5 Max", 40, "applegpu_g17s") == Hardware(
        label="M5-40c", gpu_vendor="Apple", gpu_device="Apple M5 Max", gpu_architecture="applegpu_g17s"
    )
    assert hardware.apple("Apple A18", 6).label == "Unknown-6c"


def test_labels_of_other_vendors_carry_backend_and_architecture() -> None:
    """CUDA and ROCm never share a label, so they never share a verdict."""
    assert hardware.cuda().label == "cuda-Unknown-0c"
    assert hardware.cuda("NVIDIA GB10", "sm_121").label == "cuda-sm_121-Unknown-0c"
    assert hardware.rocm("AMD Radeon 8060S Graphics", "gfx1151") == Hardware(
        label="rocm-gfx1151-Unknown-0c",
        gpu_vendor="Amd",
        gpu_device="AMD Radeon 8060S Graphics",
        gpu_architecture="gfx1151",
    )
    assert hardware.rocm().label == "rocm-Unknown-0c"


def test_a_cpu_label_names_architecture_and_cores() -> None:
    """A machine without a GPU has a class of its own and no vendor."""
    assert hardware.cpu("x86_64", 2) == Hardware(label="cpu-x86_64-Unknown-2c", gpu_vendor="Unknown")


@pytest.mark.parametrize(
    ("label", "can_batch", "expected"),
    [
        ("M1-8c", False, True),
        ("M5-16c", False, True),
        ("cpu-x86_64-Unknown-2c", False, True),
        ("M1-8c", True, False),
        ("M2-10c", True, False),
        ("M3-10c", True, True),
        ("M4-10c", True, True),
        ("M5-40c", True, True),
        ("Unknown-6c", True, False),
        ("cuda-Unknown-0c", True, False),
        ("rocm-gfx1151-Unknown-0c", True, False),
    ],
)
def test_the_static_default(label: str, can_batch: bool, expected: bool) -> None:
    """A target that cannot batch speculates everywhere; of the others those from M3 on."""
    assert hardware.static_default(label, can_batch) is expected


def test_a_newer_apple_generation_is_not_unknown() -> None:
    """Deliberately unlike the original, which knows M1 to M5 only: a newer chip is grouped with M5."""
    assert hardware.static_default("M6-40c", True) is True
