"""The cells of the benchmarks' tables, as text. Pure; drawing them is the caller's."""

from collections.abc import Sequence

from msgspec import Struct

from bench.chart import Bar, Line, bar_chart
from bench.overhead import LABELS, Round, Spread
from bench.overhead import rows as overhead_rows
from bench.speculation import Pair, drafted, emitted_per_round
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
                _optional(row.emitted_per_round),
                "yes" if row.identical else "NO",
            )
            for row in kind_rows(pairs)
        ],
    )


def speedup_chart(pairs: Sequence[Pair], median: float) -> str:
    """An SVG of every prompt's speed-up, grouped by kind."""
    emitted = emitted_per_round(drafted(pairs))
    return bar_chart(
        f"Speed-up of MTP over plain decoding ({_optional(emitted)} tokens per round)",
        "speed-up",
        [Bar(pair.prompt.kind, pair.speedup) for pair in pairs],
        [Line(1.0, "plain"), Line(median, f"median {median:.2f}")],
    )


def _spread(value: Spread, digits: int = 1) -> str:
    return f"{value.median:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"


def _optional(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
