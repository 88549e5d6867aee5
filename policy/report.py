"""Composes the published snapshot: one report per live pairing, and which of them stands at the top."""

import msgspec

from messages.policy import Exactness, PolicyReport, PolicySnapshot
from policy import judge, wire
from policy.cluster import Cluster, Entry, counts_of, exactness_of, replicas_of, rules_of
from policy.config import SAMPLES_REQUIRED
from policy.evidence import acceptance_rate
from policy.gates import gate
from policy.key import original_text
from policy.machine import visible_samples
from policy.resizing import recommended
from policy.rules import Rules
from policy.states import ExactnessDeclined, Figures, Forced, Profiling, Settled, State, Unavailable
from policy.tallies import minus, starving_gate

replace = msgspec.structs.replace


def publish(cluster: Cluster, previous: PolicySnapshot) -> PolicySnapshot:
    """`previous` itself while nothing has changed, else the present snapshot under the next version."""
    present = snapshot(cluster, previous.version)
    return previous if present == previous else replace(present, version=previous.version + 1)


def snapshot(cluster: Cluster, version: int = 0) -> PolicySnapshot:
    """What the cluster's live replicas amount to.

    At the top stands the pairing with most live replicas (ties by key); without any, the absence of MTP;
    without a live replica, that no worker is ready.
    """
    live = [key for key in cluster.entries if replicas_of(cluster, key)]
    if not live:
        without = replicas_of(cluster, None)
        if without:
            return wire.no_mtp_dispatch(without[0].hardware, version)
        return wire.worker_not_ready(cluster.last_hardware, version)
    live.sort(key=lambda key: _rank(cluster, key))
    reports = tuple(_report(cluster, key) for key in live)
    return PolicySnapshot(version=version, top=_without_identity(reports[0]), pairings=reports)


def _rank(cluster: Cluster, key: str) -> tuple[int, str, str]:
    return -len(replicas_of(cluster, key)), original_text(cluster.entries[key].dispatch.pairing), key


def _without_identity(report: PolicyReport) -> PolicyReport:
    """At the top level an unavailable policy names no pairing; its row among the pairings does."""
    if report.state != "unavailable":
        return report
    return replace(report, target=None, drafter=None, hardware=None, block_size=None)


def _report(cluster: Cluster, key: str) -> PolicyReport:
    entry = cluster.entries[key]
    rules = rules_of(cluster, entry)
    total = counts_of(cluster, key)
    live = replicas_of(cluster, key)
    enabled = gate(rules, entry.state).enabled
    starved = starving_gate(minus(total, entry.baseline), entry.too_short, cluster.config.starved_after)
    return replace(
        _in_state(_identity(entry, exactness_of(live)), rules, entry.state),
        recommended_block_size=_recommended(cluster, entry),
        mtp_enabled=enabled,
        attempts=total.attempts,
        bursts=total.bursts,
        declines=total.declines,
        fallbacks=total.fallbacks,
        audited_rounds=total.audited,
        audit_mismatches=total.mismatches,
        starved_by=starved if enabled else None,
        replicas=len(live),
    )


def _identity(entry: Entry, exactness: Exactness) -> PolicyReport:
    pairing, hardware = entry.dispatch.pairing, entry.hardware
    return PolicyReport(
        state="unavailable",
        target=pairing.target,
        drafter=pairing.drafter,
        hardware=pairing.hardware,
        block_size=pairing.block_size,
        gpu_vendor=hardware.gpu_vendor,
        gpu_device=hardware.gpu_device,
        gpu_architecture=hardware.gpu_architecture,
        samples_required=SAMPLES_REQUIRED,
        exact=exactness.exact,
        selection=exactness.selection,
        drafter_kind=entry.dispatch.drafter_kind,
        verify_cost=entry.dispatch.verify_cost,
        plain_step_ms=entry.dispatch.plain_step_ms,
        draft_step_ms=entry.dispatch.draft_step_ms,
    )


def _recommended(cluster: Cluster, entry: Entry) -> int | None:
    match entry.state:
        case Settled(figures=figures):
            return recommended(cluster, entry, figures)
        case Profiling(evidence=evidence):
            return recommended(cluster, entry, judge.figures(rules_of(cluster, entry), evidence))
        case _:
            return None


def _drafter_share(figures: Figures) -> float | None:
    found = figures.per_round
    whole = found.drafter_ms + found.verify_ms + found.overhead_ms if found else 0.0
    return found.drafter_ms / whole if found and whole > 0 else None


def _in_state(report: PolicyReport, rules: Rules, state: State) -> PolicyReport:
    match state:
        case Unavailable(reason=reason):
            return replace(report, state="unavailable", reason=reason)
        case Forced():
            return replace(report, state="forced")
        case ExactnessDeclined(detail=detail):
            return replace(report, state="exactness_declined", decline_detail=detail)
        case Profiling(evidence=evidence):
            samples = visible_samples(evidence)
            return replace(
                _measured(report, rules, judge.figures(rules, evidence)),
                state="profiling",
                acceptance_rate=acceptance_rate(evidence.samples),
                samples=samples,
                samples_remaining=SAMPLES_REQUIRED - samples,
            )
        case Settled():
            return replace(
                _measured(report, rules, state.figures),
                state="settled",
                verdict=state.verdict,
                acceptance_rate=state.acceptance_rate,
                samples=state.samples,
                source=state.source,
                settled_at=state.settled_at,
            )


def _measured(report: PolicyReport, rules: Rules, figures: Figures) -> PolicyReport:
    report = replace(
        report,
        estimator=rules.config.estimator,
        rounds=figures.rounds,
        accepted_per_position=figures.positions or None,
        original_speedup=figures.original_speedup,
        original_verdict=figures.original_verdict,
        drafter_share=_drafter_share(figures),
        classes=figures.classes,
    )
    paired = figures.paired
    if paired is None:
        return replace(
            report, speedup=figures.original_speedup if rules.config.estimator != "paired" else None
        )
    return replace(
        report,
        speedup=paired.speedup,
        speedup_low=paired.low,
        speedup_high=paired.high,
        plain_ms_per_token=paired.plain_ms_per_token,
        mtp_ms_per_token=paired.mtp_ms_per_token,
    )
