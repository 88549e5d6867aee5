"""What leaving the choice to the policy costs against an oracle that knows the better way per question. Pure.

Cost is decode time per token, weighed by the tokens of the plain answer, so that every way is charged for
the same work. Regret is time over the oracle's time, minus 1.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from bench.pace import ms_per_token
from bench.reply import Reply
from bench.workloads import TEMPERATURES, WORKLOADS, Question, Workload

Way = Literal["policy", "on", "off"]
WAYS: tuple[Way, ...] = ("policy", "on", "off")
_POLICY_FIELDS = (
    *("state", "verdict", "target", "drafter", "hardware", "block_size", "selection", "samples", "rounds"),
    *("speedup", "speedup_low", "speedup_high", "accepted_per_position"),
    *("original_speedup", "original_verdict"),
)


class Trial(Struct, frozen=True):
    """One question answered each way: as the policy chose, speculating, and plainly."""

    question: Question
    policy: Reply
    on: Reply
    off: Reply

    def cost_ms(self, way: Way) -> float:
        """Decode milliseconds of the plain answer's tokens at the pace of `way`."""
        replies: Mapping[Way, Reply] = {"policy": self.policy, "on": self.on, "off": self.off}
        return ms_per_token(self.off, replies[way]) * (self.off.completion_tokens - 1)

    @property
    def oracle_ms(self) -> float:
        """The cost of the better of the two fixed ways."""
        return min(self.cost_ms("on"), self.cost_ms("off"))


class Settling(Struct, frozen=True):
    """How the policy came to its verdict: ordinary requests it took, and its body after them."""

    requests: int
    policy: Mapping[str, Any]


class Outcome(Struct, frozen=True):
    """Everything measured of one pairing, which `name` tells apart."""

    name: str
    settling: Settling
    trials: tuple[Trial, ...]


class Cell(Struct, frozen=True, kw_only=True):
    """The questions of one workload at one temperature. `speedup` is plain over speculative time."""

    workload: Workload
    temperature: float
    questions: int
    speedup: float
    regret: Mapping[Way, float]
    speculated: int


def regret(trials: Sequence[Trial], way: Way) -> float:
    """Time of `way` over the oracle's, minus 1, over all trials together."""
    return sum(trial.cost_ms(way) for trial in trials) / sum(trial.oracle_ms for trial in trials) - 1


def regrets(trials: Sequence[Trial]) -> dict[Way, float]:
    """The regret of every way."""
    return {way: regret(trials, way) for way in WAYS}


def cells(trials: Sequence[Trial]) -> list[Cell]:
    """One per workload and temperature that has trials, in their fixed order."""
    groups: list[tuple[Workload, float, list[Trial]]] = [
        (workload, temperature, [t for t in trials if _is_in(t.question, workload, temperature)])
        for workload in WORKLOADS
        for temperature in TEMPERATURES
    ]
    return [_cell(workload, temperature, group) for workload, temperature, group in groups if group]


def original_regret(outcome: Outcome) -> float | None:
    """Regret of following the original estimator's verdict; None where the policy body carries none."""
    verdict = outcome.settling.policy.get("original_verdict")
    if verdict is None:
        return None
    return regret(outcome.trials, "on" if verdict == "enable" else "off")


def policy_over_plain(trials: Sequence[Trial]) -> float:
    """Time under the policy over the time of plain decode: 1 is plain speed."""
    return _total(trials, lambda trial: trial.cost_ms("policy")) / _total(trials, lambda t: t.cost_ms("off"))


def summary(outcomes: Sequence[Outcome], tokens: int) -> dict[str, object]:
    """The object printed last."""
    return {
        "regret_max": round(max(regret(outcome.trials, "policy") for outcome in outcomes), 4),
        "pairings": [_pairing(outcome) for outcome in outcomes],
        "tokens": tokens,
    }


def _pairing(outcome: Outcome) -> dict[str, object]:
    trials, body = outcome.trials, outcome.settling.policy
    original = original_regret(outcome)
    return {
        "name": outcome.name,
        "verdict": body.get("verdict"),
        "settle_requests": outcome.settling.requests,
        **{f"regret_{way}": round(value, 4) for way, value in regrets(trials).items()},
        "original_verdict": body.get("original_verdict"),
        "regret_original": None if original is None else round(original, 4),
        "policy_over_plain": round(policy_over_plain(trials), 4),
        "identical": all(_same_text(trial) for trial in trials),
        "policy": {name: body.get(name) for name in _POLICY_FIELDS},
        "cells": [_cell_figures(cell) for cell in cells(trials)],
    }


def _cell_figures(cell: Cell) -> dict[str, object]:
    return {
        "workload": cell.workload,
        "temperature": cell.temperature,
        "questions": cell.questions,
        "speculated": cell.speculated,
        "speedup": round(cell.speedup, 4),
        **{f"regret_{way}": round(value, 4) for way, value in cell.regret.items()},
    }


def _cell(workload: Workload, temperature: float, trials: Sequence[Trial]) -> Cell:
    return Cell(
        workload=workload,
        temperature=temperature,
        questions=len(trials),
        speedup=_total(trials, lambda t: t.cost_ms("off")) / _total(trials, lambda t: t.cost_ms("on")),
        regret=regrets(trials),
        speculated=sum(trial.policy.draft is not None for trial in trials),
    )


def _is_in(question: Question, workload: Workload, temperature: float) -> bool:
    return (question.workload, question.temperature) == (workload, temperature)


def _same_text(trial: Trial) -> bool:
    return trial.policy.text == trial.on.text == trial.off.text


def _total(trials: Sequence[Trial], cost: Callable[[Trial], float]) -> float:
    return sum(map(cost, trials))
