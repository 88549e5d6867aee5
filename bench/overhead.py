"""What the overhead rounds say: ratios, medians, agreement of the texts, rows for a table. Pure.

A ratio is mtp-serve's rate over another system's; it is taken within one round, where both met the same
machine, and the median over the rounds is reported.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from statistics import median
from typing import Literal

from msgspec import Struct

from bench.reply import Reply, decode_tps, same_answer, throughput_tps

System = Literal["inprocess", "mlx_lm_server", "mtp_serve"]
# The order in which a round asks them.
SYSTEMS: tuple[System, ...] = ("inprocess", "mlx_lm_server", "mtp_serve")
LABELS: Mapping[System, str] = {
    "inprocess": "mlx-lm in process",
    "mlx_lm_server": "mlx_lm.server",
    "mtp_serve": "mtp-serve",
}
WIDTHS = (1, 8)


class Round(Struct, frozen=True):
    """The same prompts put to every system in turn; `replies` has one answer per stream, in prompt order."""

    width: int
    replies: Mapping[System, tuple[Reply, ...]]


class Conditions(Struct, frozen=True, kw_only=True):
    """What held for the whole run. Memory is in MB, `idle_cpu_percent` in percent of one core while idle."""

    model: str
    dtype: str
    blas: str
    threads: int
    startup_s: float
    idle_cpu_percent: float
    memory_mb: Mapping[System, float]
    hardware: str


class Spread(Struct, frozen=True):
    """Median, lowest and highest of one figure over the rounds."""

    median: float
    low: float
    high: float


class Row(Struct, frozen=True):
    """One line of the table; `ratio` is mtp-serve's rate over this system's."""

    system: System
    width: int
    decode_tps: Spread
    throughput_tps: Spread
    ttft_ms: Spread
    ratio: Spread


def rows(rounds: Sequence[Round]) -> list[Row]:
    """One row per number of streams and system."""
    return [_row(system, width, _of(rounds, width)) for width in WIDTHS for system in SYSTEMS]


def ratios(rounds: Sequence[Round], system: System) -> list[float]:
    """mtp-serve's decode rate over the system's, round by round."""
    return [_decode(r, "mtp_serve") / _decode(r, system) for r in rounds]


def mismatches(rounds: Sequence[Round]) -> list[str]:
    """A sentence for every prompt whose answers were not the same from all three systems."""
    found: list[str] = []
    for width in WIDTHS:
        for number, one in enumerate(_of(rounds, width), 1):
            for system in SYSTEMS[:-1]:
                pairs = zip(one.replies["mtp_serve"], one.replies[system], strict=True)
                found += [
                    f"{width} stream(s), round {number}, prompt {index}: {difference(ours, theirs)} "
                    f"(mtp-serve / {LABELS[system]})"
                    for index, (ours, theirs) in enumerate(pairs, 1)
                    if not same_answer(ours, theirs)
                ]
    return found


def difference(one: Reply, other: Reply) -> str:
    """What two answers do not agree in, in words."""
    for name in ("prompt_tokens", "completion_tokens", "finish_reason"):
        if getattr(one, name) != getattr(other, name):
            return f"{name} {getattr(one, name)} / {getattr(other, name)}"
    letters = zip(one.text.removeprefix(" "), other.text.removeprefix(" "), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], letters))
    return f"text from character {same} on"


def summary(rounds: Sequence[Round], conditions: Conditions, tokens: int) -> dict[str, object]:
    """The object printed last. Rates are tokens per second, times what their names say."""
    table: dict[tuple[System, int], Row] = {(row.system, row.width): row for row in rows(rounds)}
    figures: dict[str, object] = {}
    for system in SYSTEMS[:-1]:
        for width in WIDTHS:
            figures[f"ratio_vs_{system}_{width}"] = _round(table[system, width].ratio.median)
    for system in SYSTEMS[:-1]:
        for width in WIDTHS:
            per_round = [
                throughput_tps(r.replies["mtp_serve"]) / throughput_tps(r.replies[system])
                for r in _of(rounds, width)
            ]
            figures[f"throughput_ratio_vs_{system}_{width}"] = _round(median(per_round))
    differing = mismatches(rounds)
    early = sum(reply.completion_tokens < tokens for r in rounds for reply in r.replies["mtp_serve"])
    return figures | {
        "ttft_ms": _round(table["mtp_serve", 1].ttft_ms.median, 1),
        "ttft_ms_mlx_lm_server": _round(table["mlx_lm_server", 1].ttft_ms.median, 1),
        "ttft_ms_inprocess": _round(table["inprocess", 1].ttft_ms.median, 1),
        "startup_s": _round(conditions.startup_s, 1),
        "idle_cpu_percent": _round(conditions.idle_cpu_percent, 1),
        "memory_mb": {system: _round(value, 0) for system, value in conditions.memory_mb.items()},
        "identical_text": not differing,
        "mismatches": differing,
        "answers_ended_early": early,
        "decode_tokens_per_second": _by_width(table, "decode_tps"),
        "throughput_tokens_per_second": _by_width(table, "throughput_tps"),
        "ratios_per_round": {
            f"vs_{system}_{width}": [_round(value) for value in ratios(_of(rounds, width), system)]
            for system in SYSTEMS[:-1]
            for width in WIDTHS
        },
        "pairs": len(_of(rounds, WIDTHS[0])),
        "tokens": tokens,
        "model": conditions.model,
        "dtype": conditions.dtype,
        "blas": conditions.blas,
        "threads": conditions.threads,
        "hardware": conditions.hardware,
    }


def _row(system: System, width: int, rounds: Sequence[Round]) -> Row:
    replies = [r.replies[system] for r in rounds]
    return Row(
        system=system,
        width=width,
        decode_tps=spread([decode_tps(group) for group in replies]),
        throughput_tps=spread([throughput_tps(group) for group in replies]),
        ttft_ms=spread([median(reply.ttft_ms for reply in group) for group in replies]),
        ratio=spread(ratios(rounds, system)),
    )


def spread(values: Sequence[float]) -> Spread:
    """Median and range of at least one value."""
    return Spread(median(values), min(values), max(values))


def _by_width(table: Mapping[tuple[System, int], Row], name: str) -> dict[str, dict[str, float]]:
    return {
        system: {str(width): _round(getattr(table[system, width], name).median, 2) for width in WIDTHS}
        for system in SYSTEMS
    }


def _of(rounds: Sequence[Round], width: int) -> list[Round]:
    return [r for r in rounds if r.width == width]


def _decode(one: Round, system: System) -> float:
    return decode_tps(one.replies[system])


def _round(value: float, digits: int = 3) -> float:
    return round(value, digits)
