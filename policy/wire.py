"""The wire contract of `GET /v1/internal/mtp-policy`, schema version 1, and its mirror in `/health`.

Knows names, null rules and rounding; decides nothing. Within a schema version fields and labels only grow.
"""

import math

from messages.policy import ClassReport, Hardware, PolicyReport, PolicySnapshot, UnavailableReason
from policy.config import SAMPLES_REQUIRED

SCHEMA_VERSION = 1


def worker_not_ready(hardware: Hardware | None = None, version: int = 0) -> PolicySnapshot:
    """What is published before any replica has reported, and once the last one is gone."""
    return PolicySnapshot(version=version, top=_unavailable("worker_not_ready", None, hardware))


def no_mtp_dispatch(hardware: Hardware | None = None, version: int = 0) -> PolicySnapshot:
    """What is published when no served model can speculate."""
    return PolicySnapshot(version=version, top=_unavailable("no_mtp_dispatch", False, hardware))


def body(snapshot: PolicySnapshot) -> dict[str, object]:
    """The response body: every field in every state, null where it does not apply.

    `pairings` holds one object per pairing with the same fields, without `schema_version`.
    """
    pairings = [_fields(report) for report in snapshot.pairings]
    return {"schema_version": SCHEMA_VERSION, **_fields(snapshot.top), "pairings": pairings}


def health_mirror(snapshot: PolicySnapshot) -> dict[str, object]:
    """The value of `observability.mtp_policy` in `/health`.

    It spells `state` as `status`, carries neither `schema_version` nor `samples_remaining`, and leaves
    `decline_detail` out where there is none.
    """
    fields = {"status": snapshot.top.state, **_fields(snapshot.top)}
    del fields["state"], fields["samples_remaining"]
    if fields["decline_detail"] is None:
        del fields["decline_detail"]
    return fields


def _unavailable(
    reason: UnavailableReason, mtp_enabled: bool | None, hardware: Hardware | None
) -> PolicyReport:
    known = hardware or Hardware(label="")
    return PolicyReport(
        state="unavailable",
        reason=reason,
        mtp_enabled=mtp_enabled,
        gpu_vendor=known.gpu_vendor,
        gpu_device=known.gpu_device,
        gpu_architecture=known.gpu_architecture,
        samples_required=SAMPLES_REQUIRED,
    )


def _fields(report: PolicyReport) -> dict[str, object]:
    positions = report.accepted_per_position
    # A settled rate has two decimals so that it equals the persisted hint; a running one is the raw quotient.
    rate_digits = 2 if report.state == "settled" else None
    return {
        "state": report.state,
        "reason": report.reason,
        "decline_detail": report.decline_detail,
        "verdict": report.verdict,
        "mtp_enabled": report.mtp_enabled,
        "target": report.target,
        "drafter": report.drafter,
        "hardware": report.hardware,
        "gpu_vendor": report.gpu_vendor,
        "gpu_device": report.gpu_device,
        "gpu_architecture": report.gpu_architecture,
        "block_size": report.block_size,
        "acceptance_rate": _number(report.acceptance_rate, rate_digits),
        "samples": report.samples,
        "samples_required": report.samples_required,
        "samples_remaining": report.samples_remaining,
        "exact": report.exact,
        "selection": report.selection,
        "drafter_kind": report.drafter_kind,
        "estimator": report.estimator,
        "source": report.source,
        "settled_at": _number(report.settled_at),
        "rounds": report.rounds,
        "speedup": _number(report.speedup),
        "speedup_low": _number(report.speedup_low),
        "speedup_high": _number(report.speedup_high),
        "plain_ms_per_token": _number(report.plain_ms_per_token),
        "mtp_ms_per_token": _number(report.mtp_ms_per_token),
        "accepted_per_position": None if positions is None else [_number(rate) for rate in positions],
        "original_speedup": _number(report.original_speedup),
        "original_verdict": report.original_verdict,
        "verify_cost": [{"rows": point.rows, "ms": _number(point.ms)} for point in report.verify_cost],
        "plain_step_ms": _number(report.plain_step_ms),
        "draft_step_ms": _number(report.draft_step_ms),
        "drafter_share": _number(report.drafter_share),
        "recommended_block_size": report.recommended_block_size,
        "classes": [_class_fields(row) for row in report.classes],
        "attempts": report.attempts,
        "bursts": report.bursts,
        "declines": {declined.reason: declined.count for declined in report.declines},
        "fallbacks": {fallback.reason: fallback.count for fallback in report.fallbacks},
        "audited_rounds": report.audited_rounds,
        "audit_mismatches": report.audit_mismatches,
        "starved_by": report.starved_by,
        "replicas": report.replicas,
    }


def _class_fields(row: ClassReport) -> dict[str, object]:
    return {
        "temperature": row.temperature,
        "context": row.context,
        "samples": row.samples,
        "acceptance_rate": _number(row.acceptance_rate),
        "speedup": _number(row.speedup),
    }


def _number(value: float | None, digits: int | None = 3) -> float | None:
    """`value` as JSON can carry it: rounded unless `digits` is None, and null when it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return value if digits is None else round(value, digits)
