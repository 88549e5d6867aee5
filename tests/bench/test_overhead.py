"""Ratios, agreement and the printed object of the overhead benchmark."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.overhead import SYSTEMS, WIDTHS, Conditions, Round, mismatches, rows, summary
from bench.tables import overhead_table
from tests.bench.builders import reply

CONDITIONS = Conditions(
    model="m",
    dtype="float32",
    blas="b 1 (2 threads)",
    threads=2,
    startup_s=14.96,
    idle_cpu_percent=7.25,
    memory_mb=dict.fromkeys(SYSTEMS, 100.4),
    hardware="h",
)


def one_round(width: int, inprocess: float, server: float, ours: float) -> Round:
    """A round in which every stream of a system decodes at the given rate."""
    rates = dict(zip(SYSTEMS, (inprocess, server, ours), strict=True))
    return Round(width, {system: (reply(tps=rate),) * width for system, rate in rates.items()})


def run(*factors: float) -> list[Round]:
    """One round per factor and width on a machine that is so many times faster than the round before."""
    return [one_round(width, 10 * f, 8 * f, 9 * f) for f in factors for width in WIDTHS]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6))
def test_a_machine_that_drifts_does_not_move_the_ratios(factors: list[float]) -> None:
    """Ratios are taken within a round, so only relative speeds matter."""
    figures = summary(run(*factors), CONDITIONS, tokens=11)
    for width in WIDTHS:
        assert figures[f"ratio_vs_inprocess_{width}"] == pytest.approx(0.9)
        assert figures[f"ratio_vs_mlx_lm_server_{width}"] == pytest.approx(1.125)


def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """One disturbed round changes nothing, although it changes the ratio of the medians."""
    rounds = [one_round(w, 10, 10, ours) for ours in (9.0, 9.5, 0.1) for w in WIDTHS]
    assert summary(rounds, CONDITIONS, tokens=11)["ratio_vs_inprocess_1"] == pytest.approx(9.0 / 10)


def test_the_object_has_the_promised_names_and_is_json() -> None:
    """Programs read these names from the last line."""
    figures = summary(run(1.0), CONDITIONS, tokens=11)
    promised = {"ratio_vs_inprocess_1", "ratio_vs_mlx_lm_server_1", "ratio_vs_mlx_lm_server_8"}
    assert promised | {"ttft_ms", "startup_s", "idle_cpu_percent", "identical_text"} <= set(figures)
    assert json.loads(json.dumps(figures)) == figures
    assert (figures["ttft_ms"], figures["startup_s"], figures["identical_text"]) == (500.0, 15.0, True)


def test_one_differing_answer_is_named_and_spoils_identity() -> None:
    """The sentence says which stream, which round, which system and where."""
    rounds = run(1.0, 1.0)
    changed = {**rounds[3].replies}
    changed["mlx_lm_server"] = (*changed["mlx_lm_server"][:4], reply(text="so it GOES"), *(reply(),) * 3)
    rounds[3] = Round(8, changed)
    (sentence,) = mismatches(rounds)
    assert sentence == (
        "8 stream(s), round 2, prompt 5: text from character 6 on (mtp-serve / mlx_lm.server)"
    )
    assert summary(rounds, CONDITIONS, tokens=11)["identical_text"] is False


def test_answers_that_ended_early_are_counted() -> None:
    """A prompt that meets its end-of-text is not hidden."""
    assert summary(run(1.0), CONDITIONS, tokens=11)["answers_ended_early"] == 0
    assert summary(run(1.0), CONDITIONS, tokens=12)["answers_ended_early"] == 9


def test_rows_cover_every_system_at_every_width_and_sum_the_streams() -> None:
    """The table has six lines; eight streams of 9 tokens/s are 72."""
    table = {(row.width, row.system): row for row in rows(run(1.0, 2.0))}
    assert len(table) == 6
    assert table[8, "mtp_serve"].decode_tps.low == pytest.approx(72)
    assert table[8, "mtp_serve"].decode_tps.high == pytest.approx(144)
    assert table[1, "inprocess"].ratio.median == pytest.approx(0.9)


def test_the_table_gives_no_ratio_of_mtp_serve_to_itself() -> None:
    """Its own lines leave that cell empty, all others fill it."""
    table = overhead_table(run(1.0))
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert [row[-1] == "" for row in table.rows] == [False, False, True] * 2
