"""The course of a policy run against a scripted server."""

import json
from typing import Any

import pytest

from bench.client import Client
from bench.errors import BenchError
from bench.policy_run import Course, Plan, observe
from serve_app.openai_schema import parse_chat, parse_completion
from tests.bench.fake_server import Answer, chat_events, serving, text_events
from tests.bench.test_speculation_run import Steps

WORDS = ["a", " b", " c", " d", " e", " f"]
PLAIN = {"predicted_n": 6, "predicted_ms": 50.0}
DRAFTED = {"predicted_n": 6, "predicted_ms": 25.0, "draft_n": 12, "draft_n_accepted": 1, "draft_rounds": 4}
PLAN = Plan(pairings={"tiny": "unused"}, per_cell=1, tokens=6, settle_requests=8, settle_tokens=6)


class Scripted:
    """A server whose policy settles on enable after `needed` requests left to it."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.requests: list[dict[str, Any]] = []

    @property
    def left_to_it(self) -> list[dict[str, Any]]:
        """Requests that did not choose for themselves."""
        return [body for body in self.requests if "speculative" not in body]

    def __call__(self, path: str, body: dict[str, Any]) -> Answer:
        samples = len(self.left_to_it)
        if path == "/v1/internal/mtp-policy":
            settled = samples >= self.needed
            return 200, {
                "state": "settled" if settled else "profiling",
                "reason": None,
                "verdict": "enable" if settled else None,
                "mtp_enabled": True,
                "samples": samples,
                "original_verdict": "decline",
            }
        sent = json.dumps({name: value for name, value in body.items() if name != "auth"}).encode()
        # Raises, and so fails the run, when this project's own server would refuse the request.
        (parse_chat if "messages" in body else parse_completion)(sent)
        self.requests.append(body)
        timings = DRAFTED if body.get("speculative", samples > self.needed) else PLAIN
        return 200, (chat_events if "messages" in body else text_events)(WORDS, timings=timings)


def run(server: Scripted, plan: Plan = PLAN) -> tuple[Any, Steps]:
    """What `observe` finds, and the steps it announced and took."""
    steps = Steps()
    with serving(server) as url:
        return observe("tiny", Client(url), plan, Course(plan, steps)), steps


def test_the_policy_settles_before_anything_is_compared() -> None:
    """Six ordinary requests, half of them sampled, then every cell three ways; no step is left over."""
    server = Scripted(needed=6)
    found, steps = run(server)
    assert (found.settling.requests, found.settling.policy["verdict"]) == (6, "enable")
    assert [body["temperature"] for body in server.left_to_it[:6]] == [0, 0.8] * 3
    assert len(found.trials) == 8
    # Starting the server is the one announced step that is not taken here.
    assert steps.begun == steps.announced - 1


def test_every_question_is_asked_three_ways_with_one_seed_in_changing_order() -> None:
    """Random text is continued, everything else is a chat; nothing ends early."""
    server = Scripted(needed=0)
    found, _ = run(server)
    asked = server.requests[2:]
    assert len(asked) == 24
    for start in range(0, 24, 3):
        three = asked[start : start + 3]
        assert {body.get("speculative") for body in three} == {None, True, False}
        assert len({(body["seed"], body["temperature"], body["ignore_eos"]) for body in three}) == 1
    assert [body.get("speculative") for body in asked[::3]] == [None, True, False] * 2 + [None, True]
    assert sum("prompt" in body for body in asked) == 6
    assert all(t.on.draft and not t.off.draft for t in found.trials)


def test_a_policy_that_does_not_settle_is_measured_as_it_is() -> None:
    """The cap ends the waiting; the state says what became of it."""
    found, _ = run(Scripted(needed=999), PLAN_OF_TWO)
    assert (found.settling.requests, found.settling.policy["state"]) == (2, "profiling")


PLAN_OF_TWO = Plan(pairings={"tiny": "unused"}, per_cell=1, tokens=6, settle_requests=2, settle_tokens=6)


def test_an_answer_of_one_token_is_not_measured() -> None:
    """The sentence names the question."""

    def terse(path: str, body: dict[str, Any]) -> Answer:
        if path == "/v1/internal/mtp-policy":
            return Scripted(needed=0)(path, body)
        return 200, (chat_events if "messages" in body else text_events)(["a"], timings=PLAIN)

    steps = Steps()
    with serving(terse) as url, pytest.raises(BenchError, match="too few to measure"):
        observe("tiny", Client(url), PLAN, Course(PLAN, steps))
