"""The wire body in every state: golden bodies, decoded by a schema that knows every field and no other."""

from typing import Literal

import msgspec
import pytest
from msgspec import Struct

from messages.policy import (
    Counts,
    Declined,
    Exactness,
    FellBack,
    Hardware,
    Message,
    PolicySnapshot,
    Renew,
    VerifyCost,
)
from messages.scheduling import ModelName
from policy.cluster import Cluster
from policy.config import PolicyConfig
from policy.fold import observe
from policy.report import snapshot
from policy.switches import Switches
from policy.wire import body, health_mirror, no_mtp_dispatch, worker_not_ready
from tests.policy.builders import M5, attach, sample

Verdict = Literal["enable", "decline"]
Reason = Literal["no_mtp_dispatch", "adaptive_disabled", "worker_not_ready", "exactness_pending"]


class ClassRow(Struct, forbid_unknown_fields=True):
    temperature: Literal["greedy", "sampled"]
    context: Literal["short", "medium", "long"]
    samples: int
    acceptance_rate: float | None
    speedup: float | None


class Row(Struct, forbid_unknown_fields=True, kw_only=True):
    """Every field without a default, so that a missing one fails the decoding."""

    state: Literal["settled", "profiling", "forced", "unavailable", "exactness_declined"]
    reason: Reason | None
    decline_detail: str | None
    verdict: Verdict | None
    mtp_enabled: bool | None
    target: str | None
    drafter: str | None
    hardware: str | None
    gpu_vendor: Literal["Apple", "Nvidia", "Amd", "Unknown"]
    gpu_device: str | None
    gpu_architecture: str | None
    block_size: int | None
    acceptance_rate: float | None
    samples: int
    samples_required: Literal[4]
    samples_remaining: int | None
    exact: bool | None
    selection: Literal["default", "narrow", "row_invariant"] | None
    drafter_kind: str | None
    estimator: Literal["paired", "measured", "upper_bound"] | None
    source: Literal["measured", "restored"] | None
    settled_at: float | None
    rounds: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    plain_ms_per_token: float | None
    mtp_ms_per_token: float | None
    accepted_per_position: list[float] | None
    original_speedup: float | None
    original_verdict: Verdict | None
    verify_cost: list[VerifyCost]
    plain_step_ms: float | None
    draft_step_ms: float | None
    drafter_share: float | None
    recommended_block_size: int | None
    classes: list[ClassRow]
    attempts: int
    bursts: int
    declines: dict[str, int]
    fallbacks: dict[str, int]
    audited_rounds: int
    audit_mismatches: int
    starved_by: str | None
    replicas: int


class Body(Row, forbid_unknown_fields=True, kw_only=True):
    schema_version: Literal[1]
    pairings: list[Row]


def served(*messages: Message, switches: Switches | None = None) -> PolicySnapshot:
    """What is published after these messages."""
    value = Cluster(config=PolicyConfig(), switches=switches or Switches())
    for message in messages:
        value = observe(value, message)
    return snapshot(value)


INEXACT = Exactness(
    exact=False,
    selection="default",
    detail="verify block position 0 differs from the single-token chain in 245722 of 524288 logit bytes.",
)
SAMPLE = sample(1.8, at_s=3.0)
SNAPSHOTS = {
    "worker_not_ready": worker_not_ready(),
    "no_mtp_dispatch": no_mtp_dispatch(M5),
    "adaptive_disabled": served(attach(), switches=Switches(adaptive=False, pin=False)),
    "exactness_pending": served(attach(exactness=Exactness())),
    "forced": served(attach(), SAMPLE, switches=Switches(pin=True)),
    "profiling": served(attach()),
    "profiling_2_of_4": served(attach(), SAMPLE, SAMPLE),
    "settled": served(attach(), *[SAMPLE] * 4),
    "declined": served(attach(), *[sample(0.7, at_s=3.0)] * 4),
    "exactness_declined": served(attach(exactness=INEXACT)),
}

PAIRING = {"target": "Gemma4-12B", "drafter": "Gemma4-12B-MTP", "hardware": "M5-16c", "block_size": 4}
NO_PAIRING = dict.fromkeys(PAIRING)
APPLE = {"gpu_vendor": "Apple", "gpu_device": "Apple M5", "gpu_architecture": None}
NO_GPU = {"gpu_vendor": "Unknown", "gpu_device": None, "gpu_architecture": None}


def contract(
    state: str, mtp_enabled: bool | None, pairing: dict[str, object], gpu: dict[str, object], **other: object
) -> dict[str, object]:
    """The published part of a body; what is not given is null or zero."""
    return {
        "schema_version": 1,
        "state": state,
        "reason": None,
        "decline_detail": None,
        "verdict": None,
        "mtp_enabled": mtp_enabled,
        "acceptance_rate": None,
        "samples": 0,
        "samples_required": 4,
        "samples_remaining": None,
        **pairing,
        **gpu,
        **other,
    }


GOLDEN = {
    "worker_not_ready": contract("unavailable", None, NO_PAIRING, NO_GPU, reason="worker_not_ready"),
    "no_mtp_dispatch": contract("unavailable", False, NO_PAIRING, APPLE, reason="no_mtp_dispatch"),
    "adaptive_disabled": contract("unavailable", False, NO_PAIRING, APPLE, reason="adaptive_disabled"),
    "exactness_pending": contract("unavailable", False, NO_PAIRING, APPLE, reason="exactness_pending"),
    "forced": contract("forced", True, PAIRING, APPLE),
    "profiling": contract("profiling", True, PAIRING, APPLE, samples_remaining=4),
    "profiling_2_of_4": contract(
        "profiling", True, PAIRING, APPLE, samples=2, samples_remaining=2, acceptance_rate=2 / 3
    ),
    "settled": contract("settled", True, PAIRING, APPLE, verdict="enable", samples=4, acceptance_rate=0.67),
    "declined": contract(
        "settled", False, PAIRING, APPLE, verdict="decline", samples=4, acceptance_rate=0.67
    ),
    "exactness_declined": contract(
        "exactness_declined", False, PAIRING, APPLE, decline_detail=INEXACT.detail
    ),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_body_of_every_state(name: str) -> None:
    """The published fields have exactly these values: null where nothing applies, never absent."""
    found = body(SNAPSHOTS[name])
    assert len(GOLDEN[name]) == 17
    assert {field: found[field] for field in GOLDEN[name]} == GOLDEN[name]


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_every_body_decodes_strictly(name: str) -> None:
    """All fields present with their types, nothing besides, at the top and in each pairing."""
    decoded = msgspec.json.decode(msgspec.json.encode(body(SNAPSHOTS[name])), type=Body)
    assert len(decoded.pairings) == (0 if name in {"worker_not_ready", "no_mtp_dispatch"} else 1)


def test_measured_numbers_are_rounded_to_three_decimals() -> None:
    """They are for people; the interval and the times need no more."""
    found = body(served(attach(), *[sample(1.23456, at_s=3.0)] * 4))
    assert (found["speedup"], found["speedup_low"], found["mtp_ms_per_token"]) == (1.235, 1.084, 32.4)
    assert found["accepted_per_position"] == [1.0, 1.0, 0.0]


def test_a_number_that_is_none_is_null() -> None:
    """JSON has no infinity; it must not turn a body into garbage."""
    top = msgspec.structs.replace(SNAPSHOTS["settled"].top, speedup=float("inf"), settled_at=float("nan"))
    found = body(PolicySnapshot(version=1, top=top))
    assert found["speedup"] is found["settled_at"] is None


def test_declines_are_counts_by_reason() -> None:
    """And carry nothing about the requests that were declined."""
    counts = Counts(attempts=5, bursts=0, declines=(Declined("concurrent", 4), Declined("grammar", 1)))
    found = body(served(attach(), Renew(model=ModelName("m"), incarnation="1", counts=counts)))
    assert found["declines"] == {"concurrent": 4, "grammar": 1}
    assert (found["attempts"], found["bursts"], found["starved_by"]) == (5, 0, "concurrent")


def test_fallbacks_and_audits_of_all_replicas_add_up() -> None:
    """Replicas that left count on, and a restarted one starts from nothing."""
    counts = Counts(attempts=5, bursts=5, fallbacks=(FellBack("bail_out", 2),), audited=3, mismatches=1)
    renewals = [Renew(model=ModelName("m"), incarnation=number, counts=counts) for number in ("1", "2")]
    value = served(attach(), renewals[0], attach(incarnation="2"), renewals[1])
    found = body(value)
    assert found["fallbacks"] == {"bail_out": 4}
    assert (found["audited_rounds"], found["audit_mismatches"]) == (6, 2)


def test_gpu_facts_of_the_host_are_passed_on() -> None:
    """Vendor, device and architecture appear before any pairing does."""
    host = Hardware(label="x", gpu_vendor="Amd", gpu_device="AMD Radeon 8060S", gpu_architecture="gfx1151")
    found = body(worker_not_ready(host))
    assert (found["gpu_vendor"], found["gpu_architecture"]) == ("Amd", "gfx1151")
    assert found["hardware"] is None


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_health_mirror_shows_the_same_snapshot(name: str) -> None:
    """`status` for `state`, no version, nothing remaining, no empty detail; all else is equal."""
    mirror, found = health_mirror(SNAPSHOTS[name]), body(SNAPSHOTS[name])
    assert mirror.pop("status") == found.pop("state")
    left_out = {"schema_version", "samples_remaining", "pairings"}
    if name != "exactness_declined":
        left_out.add("decline_detail")
    assert mirror == {field: value for field, value in found.items() if field not in left_out}
