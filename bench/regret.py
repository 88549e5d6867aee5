"""What leaving the choice to the policy costs against an oracle that knows the better way per question. Pure.

Cost is decode time per token, weighed by the tokens of the plain answer, so that every way is charged for
the same work. Regret is time over the oracle's time, minus 1.

One answer's time is noisy, and an oracle that takes the smaller of two noisy times is better than any oracle.
So where the server tells the times of its rounds, every way is charged for the rounds and plain steps it
really took at the pairing's median time of each (`StepTimes`); the regret of the times as they came stands
beside it.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from bench.pace import decode_ms, ms_per_token
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

    def reply(self, way: Way) -> Reply:
        """The answer of that way."""
        replies: Mapping[Way, Reply] = {"policy": self.policy, "on": self.on, "off": self.off}
        return replies[way]


Cost = Callable[[Trial, Way], float]


def timed_ms(trial: Trial, way: Way) -> float:
    """Decode milliseconds of the plain answer's tokens at the pace of `way`, as it was timed."""
    return ms_per_token(trial.off, trial.reply(way)) * (trial.off.completion_tokens - 1)


class StepTimes(Struct, frozen=True):
    """Median milliseconds of a plain step and of a round, each over the answers that took any."""

    plain_ms: float
    round_ms: float

    def cost_ms(self, trial: Trial, way: Way) -> float:
        """Milliseconds of the plain answer's tokens in the rounds and plain steps that `way` took."""
        reply = trial.reply(way)
        rounds = reply.draft.rounds if reply.draft else 0
        emitted = reply.draft.emitted if reply.draft else 0
        steps = max(reply.completion_tokens - emitted, 0)
        taken = rounds * self.round_ms + steps * self.plain_ms
        return taken * trial.off.completion_tokens / reply.completion_tokens


def step_times(trials: Sequence[Trial]) -> StepTimes | None:
    """The step times of a pairing; None where its server tells no times or nothing speculated."""
    plain_ms = statistics.median(decode_ms(trial.off) / (trial.off.completion_tokens - 1) for trial in trials)
    drafts = [draft for trial in trials for draft in (trial.on.draft, trial.policy.draft) if draft]
    rounds = [draft.round_ms for draft in drafts if draft.round_ms]
    return StepTimes(plain_ms, statistics.median(rounds)) if rounds else None


class Settling(Struct, frozen=True):
    """How the policy came to its verdict: ordinary requests it took, and its body after them."""

    requests: int
    policy: Mapping[str, Any]


class Outcome(Struct, frozen=True):
    """Everything measured of one pairing, which `name` tells apart."""

    name: str
    settling: Settling
    trials: tuple[Trial, ...]

    @property
    def steps(self) -> StepTimes | None:
        """What its steps took, where its server tells."""
        return step_times(self.trials)

    @property
    def cost(self) -> Cost:
        """What its answers are charged: their steps where the times are known, else the time they took."""
        steps = self.steps
        return steps.cost_ms if steps else timed_ms


class Cell(Struct, frozen=True, kw_only=True):
    """The questions of one workload at one temperature. `speedup` is plain over speculative time."""

    workload: Workload
    temperature: float
    questions: int
    speedup: float
    regret: Mapping[Way, float]
    speculated: int


def regret(trials: Sequence[Trial], way: Way, cost: Cost) -> float:
    """Time of `way` over the oracle's, minus 1, over all trials together."""
    oracle = sum(min(cost(trial, "on"), cost(trial, "off")) for trial in trials)
    return _total(trials, way, cost) / oracle - 1


def regrets(trials: Sequence[Trial], cost: Cost) -> dict[Way, float]:
    """The regret of every way."""
    return {way: regret(trials, way, cost) for way in WAYS}


def cells(trials: Sequence[Trial], cost: Cost) -> list[Cell]:
    """One per workload and temperature that has trials, in their fixed order."""
    groups: list[tuple[Workload, float, list[Trial]]] = [
        (workload, temperature, [t for t in trials if _is_in(t.question, workload, temperature)])
        for workload in WORKLOADS
        for temperature in TEMPERATURES
    ]
    return [_cell(workload, temperature, group, cost) for workload, temperature, group in groups if group]


def original_regret(outcome: Outcome) -> float | None:
    """Regret of following the original estimator's verdict; None where the policy body carries none."""
    verdict = outcome.settling.policy.get("original_verdict")
    if verdict is None:
        return None
    return regret(outcome.trials, "on" if verdict == "enable" else "off", outcome.cost)


def speedup(trials: Sequence[Trial], cost: Cost) -> float:
    """Time of plain decode over that of speculation, all questions together."""
    return _total(trials, "off", cost) / _total(trials, "on", cost)


def policy_over_plain(trials: Sequence[Trial]) -> float:
    """Time under the policy over the time of plain decode, as they came: 1 is plain speed."""
    return _total(trials, "policy", timed_ms) / _total(trials, "off", timed_ms)


def summary(outcomes: Sequence[Outcome], tokens: int) -> dict[str, object]:
    """The object printed last."""
    return {
        "regret_max": round(max(regret(outcome.trials, "policy", outcome.cost) for outcome in outcomes), 4),
        "pairings": [_pairing(outcome) for outcome in outcomes],
        "tokens": tokens,
    }


def _pairing(outcome: Outcome) -> dict[str, object]:
    trials, body, steps = outcome.trials, outcome.settling.policy, outcome.steps
    original = original_regret(outcome)
    return {
        "name": outcome.name,
        "verdict": body.get("verdict"),
        "settle_requests": outcome.settling.requests,
        **{f"regret_{way}": round(value, 4) for way, value in regrets(trials, outcome.cost).items()},
        **{f"timed_regret_{way}": round(value, 4) for way, value in regrets(trials, timed_ms).items()},
        "speedup": round(speedup(trials, outcome.cost), 4),
        "timed_speedup": round(speedup(trials, timed_ms), 4),
        "plain_step_ms": None if steps is None else round(steps.plain_ms, 2),
        "round_ms": None if steps is None else round(steps.round_ms, 2),
        "original_verdict": body.get("original_verdict"),
        "regret_original": None if original is None else round(original, 4),
        "policy_over_plain": round(policy_over_plain(trials), 4),
        "identical": all(_same_text(trial) for trial in trials),
        "policy": {name: body.get(name) for name in _POLICY_FIELDS},
        "cells": [_cell_figures(cell) for cell in cells(trials, outcome.cost)],
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


def _cell(workload: Workload, temperature: float, trials: Sequence[Trial], cost: Cost) -> Cell:
    return Cell(
        workload=workload,
        temperature=temperature,
        questions=len(trials),
        speedup=speedup(trials, cost),
        regret=regrets(trials, cost),
        speculated=sum(trial.policy.draft is not None for trial in trials),
    )


def _is_in(question: Question, workload: Workload, temperature: float) -> bool:
    return (question.workload, question.temperature) == (workload, temperature)


def _same_text(trial: Trial) -> bool:
    return trial.policy.text == trial.on.text == trial.off.text


def _total(trials: Sequence[Trial], way: Way, cost: Cost) -> float:
    return sum(cost(trial, way) for trial in trials)
