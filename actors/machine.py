"""Names the machine a model runs on in the policy's terms."""

from typing import TYPE_CHECKING

from messages.policy import Hardware
from policy import hardware

if TYPE_CHECKING:
    from engine.device import DeviceFacts


def hardware_of(facts: "DeviceFacts") -> Hardware:
    """The hardware label and GPU identity of a device."""
    match facts.backend:
        case "metal":
            return hardware.apple(facts.device_name or "", facts.gpu_cores, facts.architecture)
        case "cuda":
            return hardware.cuda(facts.device_name, facts.architecture)
        case "rocm":
            return hardware.rocm(facts.device_name, facts.architecture)
        case "cpu":
            return hardware.cpu(facts.architecture or "unknown", facts.cpu_cores)
