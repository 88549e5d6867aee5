"""Speed-ups, identity, acceptance and the limit of the speculation benchmark."""

import json
from typing import Any

import pytest

from bench.prompts import ChatPrompt
from bench.speculation import Limit, Pair, limit, rows, summary, tokens_in_first_piece
from bench.tables import speculation_table, speedup_chart
from tests.bench.builders import draft, reply

POLICY: dict[str, Any] = {"state": "settled", "block_size": 4, "accepted_per_position": [0.6, 0.4, 0.2]}


def pair(kind: str = "story", plain: float = 10, mtp: float = 15, **changes: Any) -> Pair:
    """One prompt decoded at two rates, with 5 rounds that kept 5 drafts."""
    speculative = reply(tps=mtp, draft=draft(5, 5), **changes)
    return Pair(ChatPrompt(kind, "?"), plain=reply(tps=plain), mtp=speculative)


def test_the_speed_up_is_the_ratio_of_decode_rates() -> None:
    """Fifteen against ten tokens per second is 1.5."""
    assert pair().speedup == pytest.approx(1.5)


def test_tokens_that_came_with_the_first_piece_do_not_count_as_decoded_after_it() -> None:
    """A first round of three tokens leaves eight steps for the remaining time, not ten."""
    spec = reply(tps=10, piece_chars=(3, 2, 2, 3))
    assert tokens_in_first_piece(reply(), spec) == 3
    assert Pair(ChatPrompt("story", "?"), reply(tps=10), spec).speedup == pytest.approx(0.8)


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


def test_the_limit_uses_the_servers_cost_curve_where_it_has_one() -> None:
    """Two tokens per round at 1.25 times a plain step can at best be 1.6 times as fast."""
    curve = [{"rows": 1, "ms": 100.0}, {"rows": 4, "ms": 125.0}]
    assert limit(2.0, POLICY | {"verify_cost": curve}) == Limit(1.6, "verify_cost")
    assert limit(2.0, POLICY | {"verify_cost": curve[:1]}) == Limit(2.0, "flat_verify")
    assert limit(2.0, POLICY) == Limit(2.0, "flat_verify")
    assert limit(None, POLICY) is None


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
    svg = speedup_chart([pair(mtp=12), pair("code", mtp=30)], 2.1)
    assert svg.count(">1.20<") == 1
    assert svg.count(">3.00<") >= 1
    assert "median 2.10" in svg
