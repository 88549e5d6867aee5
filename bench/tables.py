"""The cells of the benchmarks' tables, as text. Pure; drawing them is the caller's."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from bench.chart import Bar, Line, bar_chart
from bench.overhead import LABELS, Round, Spread
from bench.overhead import rows as overhead_rows
from bench.rounds import RoundTimes, cost_curve
from bench.speculation import Findings, Pair, conditional
from bench.speculation import rows as kind_rows


class Table(Struct, frozen=True):
    """A title, column names, and rows of as many cells."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def overhead_table(rounds: Sequence[Round]) -> Table:
    """Rates of every system at every number of streams, and mtp-serve's ratio to each."""
    return Table(
        "Decode rate, median (lowest to highest) over the rounds",
        ("streams", "system", "decode tokens/s", "all tokens/s", "first token, ms", "mtp-serve / it"),
        [
            (
                str(row.width),
                LABELS[row.system],
                _spread(row.decode_tps),
                _spread(row.throughput_tps),
                _spread(row.ttft_ms, digits=0),
                "" if row.system == "mtp_serve" else _spread(row.ratio, digits=3),
            )
            for row in overhead_rows(rounds)
        ],
    )


def speculation_table(pairs: Sequence[Pair]) -> Table:
    """Rates and speed-ups per kind of prompt, then over all."""
    return Table(
        "Speculation against plain decoding, temperature 0",
        (
            "kind",
            "prompts",
            "plain tokens/s",
            "MTP tokens/s",
            "speed-up",
            "worst",
            "emitted/round",
            "same text",
        ),
        [
            (
                row.kind,
                str(row.prompts),
                f"{row.plain_tps:.1f}",
                f"{row.mtp_tps:.1f}",
                f"{row.speedup:.2f}",
                f"{row.speedup_min:.2f}",
                optional(row.emitted_per_round),
                "yes" if row.identical else "NO",
            )
            for row in kind_rows(pairs)
        ],
    )


def acceptance_table(found: Findings) -> Table:
    """How often each draft of the drafter's rounds was kept."""
    rates = found.acceptance or ()
    return Table(
        "Accepted drafts",
        ("position", "of the drafter's rounds", "given those before it"),
        [
            (str(position), f"{rate:.2f}", optional(given))
            for position, (rate, given) in enumerate(zip(rates, conditional(rates), strict=True), 1)
        ],
    )


def cost_table(found: Findings, policy: Mapping[str, Any]) -> Table:
    """Where a round's time goes in this run, then what the server's probe found verifying to cost."""
    probe = [
        (f"probe: forward of {count} row(s)", f"{ms:.1f}", "")
        for count, ms in sorted(cost_curve(policy).items())
    ]
    if (ordinary := policy.get("plain_step_ms")) is not None:
        probe.insert(0, ("probe: ordinary decode step", f"{ordinary:.1f}", ""))
    return Table("Costs", ("what", "ms", "share of a round"), [*_round_rows(found.times), *probe])


def optional(value: float | None) -> str:
    """Two digits after the point, or the word none."""
    return "none" if value is None else f"{value:.2f}"


def _round_rows(times: RoundTimes | None) -> list[tuple[str, ...]]:
    if times is None:
        return []
    parts = (
        ("round", times.round_ms),
        ("  verify forward", times.verify_ms),
        ("  drafter", times.draft_ms),
        ("  everything else", times.overhead_ms),
    )
    shares = [(name, f"{ms:.1f}", f"{ms / times.round_ms:.0%}") for name, ms in parts]
    return [("plain step", f"{times.plain_ms:.1f}", ""), *shares]


def verdict_lines(found: Findings) -> list[str]:
    """The speed-up against plain and ordinary decode, and against what is possible at best."""
    lines = [f"median speed-up {found.speedup:.2f} over plain decode in the same server"]
    if found.plain_scale is not None:
        lines.append(
            f"median speed-up {found.speedup * found.plain_scale:.2f} over ordinary decode, as on a server "
            "without a drafter"
        )
    if copies := found.draft.copy_rounds:
        lines.append(
            f"{copies} of {found.draft.rounds} rounds verified tokens copied from the text itself: "
            f"{found.draft.copy_n_accepted} of {found.draft.copy_n} kept"
        )
    if found.limit is not None:
        lines.append(
            f"{found.speedup / found.limit.speedup:.0%} of the limit {found.limit.speedup:.2f}: "
            f"{optional(found.emitted_per_round)} tokens per round, a free drafter and no overhead"
        )
    return lines


def speedup_chart(pairs: Sequence[Pair], found: Findings) -> str:
    """An SVG of every prompt's speed-up, grouped by kind."""
    lines = [Line(1.0, "plain"), Line(found.speedup, f"median {found.speedup:.2f}")]
    if found.limit is not None:
        lines.append(Line(found.limit.speedup, f"limit {found.limit.speedup:.2f}"))
    return bar_chart(
        f"Speed-up of MTP over plain decoding ({optional(found.emitted_per_round)} tokens per round)",
        "speed-up",
        [Bar(pair.prompt.kind, pair.speedup) for pair in pairs],
        lines,
    )


def _spread(value: Spread, digits: int = 1) -> str:
    return f"{value.median:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"
