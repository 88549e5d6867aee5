"""Regrets of the policy and of the fixed ways against the per-question oracle."""

import json
from typing import Any

import msgspec
import pytest

from bench.regret import Outcome, Settling, StepTimes, Trial, cells, regrets, step_times, summary, timed_ms
from bench.regret_tables import regret_chart, regret_table, settling_table
from bench.workloads import Question, Workload
from tests.bench.builders import draft, reply

BODY: dict[str, Any] = {
    "state": "settled",
    "verdict": "enable",
    "speedup": 1.5,
    "original_verdict": "decline",
}


def trial(
    policy: float, on: float, off: float, workload: Workload = "chat", temperature: float = 0.0
) -> Trial:
    """One question that takes so many milliseconds per token each way."""

    def answer(ms: float, **changes: Any) -> Any:
        return reply(predicted_ms=ms * 10, **changes)

    # The drafted answer's first piece is one token, as are all others.
    return Trial(
        Question(workload=workload, temperature=temperature, seed=1, text="?"),
        policy=answer(policy),
        on=answer(on, draft=draft(5, 5)),
        off=answer(off),
    )


def outcome(*trials: Trial, name: str = "float32", **body: Any) -> Outcome:
    """A pairing that settled on four requests."""
    return Outcome(name, Settling(4, BODY | body), trials)


def test_the_oracle_takes_the_better_way_of_every_question() -> None:
    """Always on loses 40 on the second question, always off 50 on the first, over an oracle of 150."""
    trials = [trial(policy=50, on=50, off=100), trial(policy=140, on=140, off=100, workload="random")]
    assert regrets(trials, timed_ms) == pytest.approx({"policy": 40 / 150, "on": 40 / 150, "off": 50 / 150})


def test_a_longer_answer_weighs_more() -> None:
    """Costs are times of whole answers, not of tokens."""
    short = trial(policy=20, on=10, off=20)
    long = Trial(
        short.question,
        policy=reply(tokens=101, predicted_ms=1000.0),
        on=reply(tokens=101, predicted_ms=2000.0, draft=draft(5, 5)),
        off=reply(tokens=101, predicted_ms=1000.0),
    )
    assert regrets([short, long], timed_ms)["policy"] == pytest.approx(100 / 1100)


def test_every_way_is_charged_for_the_same_work() -> None:
    """An answer that ended early at half the pace is not cheap."""
    plain = reply(tokens=21, predicted_ms=200.0)
    early = reply(tokens=11, predicted_ms=200.0)
    assert timed_ms(Trial(trial(1, 1, 1).question, policy=early, on=plain, off=plain), "policy") == 400


def test_steps_are_charged_at_their_median_time_whatever_an_answer_took() -> None:
    """Ten tokens in five rounds of 15 ms cost 75 against 100 plainly, though one answer was delayed."""
    times = {"draft_ms": 10.0, "draft_verify_ms": 60.0, "draft_overhead_ms": 5.0}
    drafted = msgspec.structs.replace(draft(5, 5), **times)
    slow = msgspec.structs.replace(drafted, draft_verify_ms=600.0)
    plain = reply(tokens=10, predicted_ms=90.0)
    quick, delayed = (reply(tokens=10, predicted_ms=1.0, draft=of) for of in (drafted, slow))
    question = trial(1, 1, 1).question
    trials = [Trial(question, quick, quick, plain), Trial(question, quick, delayed, plain)]
    steps = step_times(trials)
    assert steps == StepTimes(plain_ms=10.0, round_ms=15.0)
    assert [steps.cost_ms(trials[1], way) for way in ("on", "off")] == [75.0, 100.0]
    assert outcome(*trials).cost(trials[1], "on") == 75.0
    assert regrets(trials, steps.cost_ms) == pytest.approx({"policy": 0, "on": 0, "off": 1 / 3})


def test_a_request_that_bailed_out_pays_for_rounds_and_plain_steps() -> None:
    """Four rounds that emitted five tokens, and five plain ones."""
    mixed = reply(tokens=10, draft=draft(4, 1))
    plain = reply(tokens=10)
    steps = StepTimes(plain_ms=10.0, round_ms=12.0)
    assert steps.cost_ms(Trial(trial(1, 1, 1).question, mixed, mixed, plain), "policy") == 4 * 12 + 5 * 10


def test_without_the_times_of_rounds_answers_are_charged_as_timed() -> None:
    """Servers that tell counters but no times have no step times."""
    answered = outcome(trial(50, 50, 100))
    assert answered.steps is None
    assert answered.cost is timed_ms


def test_cells_keep_their_order_and_count_what_speculated() -> None:
    """One cell per workload and temperature, whatever the order of the questions."""
    trials = [
        trial(10, 20, 10, "random"),
        trial(10, 5, 10, "chat", 0.8),
        trial(5, 5, 10, "chat"),
        trial(5, 10, 10, "chat"),
    ]
    found = cells(trials, timed_ms)
    assert [(cell.workload, cell.temperature, cell.questions) for cell in found] == [
        ("chat", 0.0, 2),
        ("chat", 0.8, 1),
        ("random", 0.0, 1),
    ]
    assert [cell.speedup for cell in found] == pytest.approx([20 / 15, 2, 0.5])
    assert {cell.speculated for cell in found} == {0}


def test_the_object_has_the_promised_names_and_is_json() -> None:
    """The worst pairing gives `regret_max`; a policy that carries no original verdict gives null."""
    good = outcome(trial(policy=50, on=50, off=100))
    bad = outcome(trial(policy=110, on=300, off=100), name="4bit", verdict="decline", original_verdict=None)
    figures: Any = summary([good, bad], tokens=11)
    assert json.loads(json.dumps(figures)) == figures
    assert figures["regret_max"] == 0.1
    first, second = figures["pairings"]
    assert (first["verdict"], first["settle_requests"], first["regret_off"]) == ("enable", 4, 1.0)
    assert (first["original_verdict"], first["regret_original"]) == ("decline", 1.0)
    assert (second["verdict"], second["regret_original"], second["policy_over_plain"]) == (
        "decline",
        None,
        1.1,
    )
    assert second["regret_on"] == 2.0


def test_tables_and_plot_show_every_pairing() -> None:
    """A regret below zero is noise: the table shows it, the plot draws nothing."""
    outcomes = [outcome(trial(49, 50, 100)), outcome(trial(100, 300, 100), name="4bit", speedup=None)]
    for table in (regret_table(outcomes), settling_table(outcomes)):
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert {row[0] for row in table.rows} == {"float32", "4bit"}
    assert regret_table(outcomes).rows[0][4:] == ("-2.0%", "0.0%", "100.0%")
    svg = regret_chart(outcomes)
    assert ">200.00<" in svg
    assert svg.count(">always on<") == svg.count(">float32<") == 1
