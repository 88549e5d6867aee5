"""The cells of the policy benchmark's tables and its chart, as text. Pure; drawing them is the caller's."""

from collections.abc import Mapping, Sequence

from bench.chart import Bar, bar_chart
from bench.regret import (
    WAYS,
    Outcome,
    Way,
    cells,
    original_regret,
    policy_over_plain,
    regrets,
    speedup,
    timed_ms,
)
from bench.tables import Table, optional

_WAY_LABELS: Mapping[Way, str] = {"policy": "policy", "on": "always on", "off": "always off"}


def regret_table(outcomes: Sequence[Outcome]) -> Table:
    """Regrets of every pairing, workload and temperature, then of the whole pairing."""
    return Table(
        "Time of the rounds and plain steps taken over the better of on and off, question by question",
        ("pairing", "workload", "temp.", "speed-up of on", *(f"regret, {_WAY_LABELS[way]}" for way in WAYS)),
        [row for outcome in outcomes for row in _regret_rows(outcome)],
    )


def settling_table(outcomes: Sequence[Outcome]) -> Table:
    """What the policy decided, on how much, beside the original estimator's answer."""
    return Table(
        "Verdicts",
        (
            "pairing",
            "verdict",
            "requests",
            "speed-up measured",
            "original verdict",
            "its regret",
            "time / plain",
        ),
        [_settling_row(outcome) for outcome in outcomes],
    )


def regret_chart(outcomes: Sequence[Outcome]) -> str:
    """An SVG of each pairing's regrets in percent; one below zero, which is noise, is drawn as zero."""
    return bar_chart(
        "Regret against the per-prompt oracle",
        "% of decode time",
        [
            Bar(outcome.name, max(0.0, 100 * value), _WAY_LABELS[way])
            for outcome in outcomes
            for way, value in regrets(outcome.trials, outcome.cost).items()
        ],
        [],
    )


def _regret_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    shown = [
        (
            outcome.name,
            cell.workload,
            f"{cell.temperature:g}",
            f"{cell.speedup:.2f}",
            *(f"{cell.regret[way]:.1%}" for way in WAYS),
        )
        for cell in cells(outcome.trials, outcome.cost)
    ]
    whole = [("all", outcome.cost)]
    if outcome.steps is not None:
        whole.append(("all, as timed", timed_ms))
    return shown + [
        (
            outcome.name,
            title,
            "",
            f"{speedup(outcome.trials, cost):.2f}",
            *(f"{value:.1%}" for value in regrets(outcome.trials, cost).values()),
        )
        for title, cost in whole
    ]


def _settling_row(outcome: Outcome) -> tuple[str, ...]:
    body, original = outcome.settling.policy, original_regret(outcome)
    low, high = body.get("speedup_low"), body.get("speedup_high")
    return (
        outcome.name,
        str(body.get("verdict") or body.get("state")),
        str(outcome.settling.requests),
        optional(body.get("speedup")) + (f" ({low:.2f} to {high:.2f})" if low and high else ""),
        str(body.get("original_verdict") or "none"),
        "none" if original is None else f"{original:.1%}",
        f"{policy_over_plain(outcome.trials):.3f}",
    )
