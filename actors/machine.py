"""Says in the policy's terms what a loaded engine is: the machine, the pairing, and whether it is exact."""

from typing import TYPE_CHECKING, cast

from messages.policy import (
    Attach,
    Dispatch,
    Exactness,
    Hardware,
    MtpDispatch,
    NoMtpDispatch,
    Pairing,
    Selection,
    VerifyCost,
)
from messages.scheduling import ModelName
from policy import hardware

if TYPE_CHECKING:
    from engine.device import DeviceFacts
    from engine.session import DraftFacts, Facts


def attachment(model: ModelName, incarnation: str, facts: "Facts") -> Attach:
    """How a replica introduces itself to the policy."""
    machine = hardware_of(facts.device)
    return Attach(
        model=model,
        incarnation=incarnation,
        hardware=machine,
        dispatch=_dispatch(facts, machine),
        exactness=_exactness(facts.drafter),
    )


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


def _dispatch(facts: "Facts", machine: Hardware) -> Dispatch:
    drafter = facts.drafter
    # A classic draft model speculates too, but it is no MTP and has no verdict.
    if drafter is None or drafter.kind != "mtp":
        return NoMtpDispatch()
    probed = drafter.probed
    return MtpDispatch(
        pairing=Pairing(
            target=facts.card.model_id.rpartition("/")[2],
            drafter=drafter.name,
            hardware=machine.label,
            block_size=drafter.block_size,
        ),
        drafter_kind=drafter.model_type,
        fingerprint=drafter.fingerprint,
        target_can_batch=True,
        verify_cost=tuple(VerifyCost(*point) for point in enumerate(probed.rows_ms, 1)) if probed else (),
        plain_step_ms=probed.plain_ms or None if probed else None,
        draft_step_ms=probed.draft_step_ms if probed else None,
        block_sizes=probed.exact_sizes if probed and drafter.may_resize else (),
    )


def _exactness(drafter: "DraftFacts | None") -> Exactness:
    if drafter is None or drafter.probed is None:
        return Exactness()
    probed = drafter.probed
    return Exactness(
        exact=probed.is_exact, selection=cast(Selection, probed.selection), detail=probed.detail or None
    )
