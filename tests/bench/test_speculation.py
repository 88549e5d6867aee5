"""Speed-ups, identity, acceptance and the limit of the speculation benchmark."""

import json
from typing import Any

import msgspec
import pytest

from bench.prompts import ChatPrompt
from bench.reply import Draft
from bench.speculation import Pair, conditional, findings, rows, summary
from bench.tables import acceptance_table, cost_table, speculation_table, speedup_chart, verdict_lines
from tests.bench.builders import draft, reply

POLICY: dict[str, Any] = {"state": "settled", "block_size": 4, "accepted_per_position": [0.6, 0.4, 0.2]}


def pair(kind: str = "story", plain: float = 10, mtp: float = 15, **changes: Any) -> Pair:
    """One prompt decoded at two rates, with 5 rounds that kept 5 drafts."""
    speculative = reply(tps=mtp, draft=draft(5, 5), **changes)
    return Pair(ChatPrompt(kind, "?"), plain=reply(tps=plain), mtp=speculative)


def test_the_speed_up_is_the_ratio_of_decode_rates() -> None:
    """Fifteen against ten tokens per second is 1.5."""
    assert pair().speedup == pytest.approx(1.5)


def test_the_servers_own_times_decide() -> None:
    """Whenever the pieces arrive, ten steps in 500 ms are twenty tokens per second."""
    late = {"first_s": 200.0, "end_s": 200.1}
    one = Pair(
        ChatPrompt("story", "?"),
        plain=reply(tps=99, predicted_ms=1000.0, **late),
        mtp=reply(tps=10, predicted_ms=500.0, draft=draft(5, 5), **late),
    )
    assert (one.plain_tps, one.mtp_tps, one.speedup) == pytest.approx((10, 20, 2))


def test_a_difference_in_text_reason_or_count_is_not_identical() -> None:
    """Unlike between two programs, not even a leading space may differ on one server."""
    assert pair().identical
    for changes in ({"text": " so it goes"}, {"finish_reason": "stop"}, {"completion_tokens": 12}):
        assert not pair(**changes).identical


def test_the_worst_prompt_and_the_median_are_reported() -> None:
    """One losing prompt shows as the minimum."""
    figures = summary([pair(mtp=20), pair(mtp=15), pair("code", mtp=8)], POLICY, tokens=11)
    assert (figures["speedup_median"], figures["speedup_min"]) == (1.5, 0.8)
    assert figures["speedup_by_kind"] == {"story": 1.75, "code": 0.8}


def test_the_object_has_the_promised_names_and_is_json() -> None:
    """Programs read these names from the last line."""
    figures = summary([pair(), pair("list")], POLICY, tokens=11)
    promised = {"speedup_median", "speedup_min", "identical", "acceptance_per_position", "limit"}
    assert promised <= set(figures)
    assert json.loads(json.dumps(figures)) == figures
    assert figures["acceptance_per_position"] == [0.6, 0.4, 0.2]
    assert (figures["draft_n"], figures["draft_n_accepted"], figures["draft_rounds"]) == (30, 10, 10)


def timed(rounds: int = 5, **times: float) -> Draft:
    """As `draft`, with counts per position 4, 1, 0 per 5 rounds and times of 30, 100 and 20 ms a round."""
    counted = draft(rounds, rounds)
    return msgspec.structs.replace(
        counted,
        draft_accepted_per_position=(4 * rounds // 5, rounds // 5, 0),
        **{"draft_ms": 30.0 * rounds, "draft_verify_ms": 100.0 * rounds, "draft_overhead_ms": 20.0 * rounds}
        | times,
    )


def test_the_run_itself_says_what_was_accepted_and_what_a_round_costs() -> None:
    """Counters and times of the answers come before what the policy knows from other requests."""
    pairs = [Pair(ChatPrompt("story", "?"), reply(tps=10), reply(tps=15, draft=timed())) for _ in range(3)]
    figures = summary(pairs, POLICY, tokens=11)
    assert figures["acceptance_per_position"] == [0.8, 0.2, 0.0]
    assert figures["acceptance_conditional"] == [0.8, 0.25, 0.0]
    assert figures["round_ms"] == {"plain_ms": 100, "draft_ms": 30, "verify_ms": 100, "overhead_ms": 20}
    assert figures["drafter_share"] == 0.2
    assert (figures["limit"], figures["limit_basis"], figures["limit_share"]) == (2.0, "rounds", 0.75)


def test_acceptance_after_a_position_that_never_held_is_unknown() -> None:
    """Nothing is divided by zero."""
    assert conditional([0.5, 0.0, 0.0]) == [0.5, 0.0, None]


def test_a_server_that_pads_plain_decode_is_also_compared_with_ordinary_decode() -> None:
    """Where an ordinary step takes 90 of the padded step's 100 ms, 1.5 is worth 1.35."""
    curve = [{"rows": 1, "ms": 100.0}, {"rows": 4, "ms": 125.0}]
    body = POLICY | {"verify_cost": curve, "plain_step_ms": 90.0}
    figures = summary([pair()], body, tokens=11)
    assert (figures["speedup_vs_ordinary_median"], figures["plain_scale"]) == (1.35, 0.9)
    assert figures["verify_cost"] == curve
    assert any("1.35" in line for line in verdict_lines(findings([pair()], body)))
    assert summary([pair()], POLICY, tokens=11)["speedup_vs_ordinary_median"] is None


def test_the_cost_table_shows_the_round_and_the_probe() -> None:
    """Shares of the round, then one line per point of the curve."""
    body = POLICY | {"verify_cost": [{"rows": 1, "ms": 100.0}], "plain_step_ms": 90.0}
    found = findings([Pair(ChatPrompt("story", "?"), reply(), reply(draft=timed()))], body)
    shown = {row[0].strip(): row[1:] for row in cost_table(found, body).rows}
    assert shown["drafter"] == ("30.0", "20%")
    assert shown["probe: forward of 1 row(s)"] == ("100.0", "")
    assert [row[1] for row in acceptance_table(found).rows] == ["0.80", "0.20", "0.00"]


def test_a_prompt_that_did_not_speculate_is_named() -> None:
    """Its speed-up of one must not pass for a measurement of speculation."""
    plain = Pair(ChatPrompt("facts", "?"), reply(), reply())
    figures = summary([pair(), plain], POLICY, tokens=11)
    assert figures["not_speculated"] == [1]
    assert summary([plain], POLICY, tokens=11)["limit"] is None


def test_kinds_keep_their_order_and_show_a_broken_identity() -> None:
    """Rows follow the fixed order of kinds; one differing text turns its kind's cell."""
    pairs = [pair("list"), pair("story"), pair("story", text="else")]
    assert [(row.kind, row.prompts, row.identical) for row in rows(pairs)] == [
        ("story", 2, False),
        ("list", 1, True),
    ]
    table = speculation_table(pairs)
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert [row[-1] for row in table.rows] == ["NO", "yes"]


def test_the_plot_has_a_bar_per_prompt() -> None:
    """Each bar carries its speed-up as text."""
    pairs = [pair(mtp=12), pair("code", mtp=30)]
    svg = speedup_chart(pairs, findings(pairs, POLICY))
    assert svg.count(">1.20<") == 1
    assert svg.count(">3.00<") >= 1
    assert "median 2.10" in svg
    assert "limit 2.00" in svg
