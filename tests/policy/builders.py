"""Small values for policy tests: a pairing, its rules, and samples with exact numbers."""

from typing import Any

import msgspec

from messages.policy import Attach, Exactness, Hardware, MtpDispatch, Pairing, Sample, Slice
from messages.scheduling import ModelName
from policy.config import PolicyConfig
from policy.hardware import apple, cpu
from policy.rules import Rules
from policy.switches import Switches

M5 = apple("Apple M5", 16)
CPU = cpu("x86_64", 2)
EXACT = Exactness(exact=True, selection="default")


def dispatch(
    *,
    target: str = "Gemma4-12B",
    drafter: str = "Gemma4-12B-MTP",
    hardware: Hardware = M5,
    block_size: int = 4,
    fingerprint: str = "weights-1",
    target_can_batch: bool = True,
) -> MtpDispatch:
    """A pairing that can speculate."""
    pairing = Pairing(target=target, drafter=drafter, hardware=hardware.label, block_size=block_size)
    return MtpDispatch(
        pairing=pairing,
        drafter_kind="gemma4_assistant",
        fingerprint=fingerprint,
        target_can_batch=target_can_batch,
    )


def rules(
    config: PolicyConfig | None = None, switches: Switches | None = None, static_default: bool = True
) -> Rules:
    """Rules of one pairing on hardware whose static default is the given one."""
    return Rules(
        config=config or PolicyConfig(),
        switches=switches or Switches(),
        dispatch=dispatch(hardware=M5 if static_default else CPU),
    )


def attach(
    model: str = "m",
    incarnation: str = "1",
    *,
    at_s: float = 0.0,
    exactness: Exactness = EXACT,
    of: MtpDispatch | None = None,
    hardware: Hardware = M5,
) -> Attach:
    """A replica reporting with an exact pairing unless told otherwise."""
    return Attach(
        model=ModelName(model),
        incarnation=incarnation,
        hardware=hardware,
        dispatch=of or dispatch(hardware=hardware),
        exactness=exactness,
        at_s=at_s,
    )


def sample(
    speedup: float = 2.0,
    rounds: int = 32,
    accepted: int = 2,
    *,
    model: str = "m",
    incarnation: str = "1",
    at_s: float = 0.0,
    cancelled: bool = False,
    block_size: int = 4,
) -> Sample:
    """A request whose every round accepts `accepted` drafts and whose slices show exactly `speedup`."""
    plain_ms = 40.0
    mtp_ms = plain_ms * (accepted + 1) / speedup
    slices = tuple(Slice(8, 8 * (accepted + 1), 8 * mtp_ms, 8, 8 * plain_ms) for _ in range(rounds // 8))
    return Sample(
        model=ModelName(model),
        incarnation=incarnation,
        rounds=rounds,
        proposed=rounds * (block_size - 1),
        accepted=rounds * accepted,
        emitted=rounds * (accepted + 1),
        accepted_per_position=tuple(rounds * (i < accepted) for i in range(block_size - 1)),
        slices=slices,
        draft_ms=rounds * mtp_ms * 0.2,
        verify_ms=rounds * mtp_ms * 0.75,
        overhead_ms=rounds * mtp_ms * 0.05,
        probe_rounds=2,
        probe_ms=2 * plain_ms,
        cancelled=cancelled,
        at_s=at_s,
    )


def copied(speedup: float = 2.0, rounds: int = 32, accepted: int = 2, **changes: Any) -> Sample:
    """The same gain without the drafter having been asked for anything: the text repeated itself."""
    served = sample(speedup, rounds, accepted, **changes)
    return msgspec.structs.replace(
        served,
        rounds=0,
        proposed=0,
        accepted=0,
        emitted=0,
        accepted_per_position=(0,) * len(served.accepted_per_position),
        draft_ms=0.0,
        verify_ms=0.0,
        overhead_ms=0.0,
    )
