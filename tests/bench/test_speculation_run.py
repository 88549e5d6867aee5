"""The course of a speculation run against a scripted server."""

from collections.abc import Callable
from typing import Any

import pytest

from bench.client import Client
from bench.errors import BenchError
from bench.prompts import ChatPrompt
from bench.speculation_run import Plan, ask, measure
from tests.bench.fake_server import Answer, chat_events, serving

WORDS = ["one", " two", " three", " four"]
PLAIN = {"predicted_n": 4, "predicted_ms": 30.0}
TIMINGS = PLAIN | {"draft_n": 6, "draft_n_accepted": 1, "draft_rounds": 2, "draft_kind": "mtp"}
SETTLED: dict[str, Any] = {
    "state": "settled",
    "reason": None,
    "mtp_enabled": True,
    "decline_detail": None,
    "block_size": 4,
    "accepted_per_position": [0.5, 0.2, 0.1],
}


class Steps:
    """Counts the steps announced and begun."""

    def __init__(self) -> None:
        self.announced, self.begun = 0, 0

    def total(self, steps: int) -> None:
        """How many there will be."""
        self.announced = steps

    def step(self, text: str) -> None:
        """One more."""
        assert text
        self.begun += 1


def server(
    policy: dict[str, Any], drafts: bool = True, seen: list[Any] | None = None
) -> Callable[..., Answer]:
    """A server with a policy body; it drafts for requests that ask for it, if it can."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if path == "/v1/internal/mtp-policy":
            return 200, policy
        if seen is not None:
            seen.append((body["messages"][0]["content"], body["speculative"]))
        return 200, chat_events(WORDS, timings=TIMINGS if drafts and body["speculative"] else PLAIN)

    return answer


def test_a_run_asks_every_prompt_both_ways_and_says_how_far_it_is() -> None:
    """Twenty prompts of five kinds, no step unannounced, and the policy's body at the end."""
    steps = Steps()
    with serving(server(SETTLED)) as url:
        pairs, policy = measure(Plan(tokens=4, url=url), steps)
    assert len(pairs) == 20
    assert len({pair.prompt.kind for pair in pairs}) == 5
    assert all(pair.identical and pair.mtp.draft and not pair.plain.draft for pair in pairs)
    assert policy["accepted_per_position"] == [0.5, 0.2, 0.1]
    assert steps.begun == steps.announced


def test_the_way_that_goes_first_alternates() -> None:
    """So neither way always meets the warmer machine."""
    seen: list[Any] = []
    prompts = [ChatPrompt("story", "a"), ChatPrompt("story", "b")]
    with serving(server(SETTLED, seen=seen)) as url:
        ask(Client(url), prompts, 4, Steps())
    assert seen == [("a", False), ("a", True), ("b", True), ("b", False)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"state": "unavailable", "reason": "no_mtp_dispatch", "mtp_enabled": False}, "no drafter"),
        (
            {"state": "exactness_declined", "mtp_enabled": False, "decline_detail": "row 0 differs"},
            "vetoed the pairing .row 0 differs",
        ),
    ],
)
def test_a_server_that_cannot_speculate_is_refused_before_anything_is_asked(
    changes: dict[str, Any], expected: str
) -> None:
    """The sentence gives the policy's own reason."""
    seen: list[Any] = []
    with serving(server(SETTLED | changes, seen=seen)) as url, pytest.raises(BenchError, match=expected):
        measure(Plan(tokens=4, url=url), Steps())
    assert seen == []


def test_a_pinned_off_or_declined_policy_is_no_obstacle() -> None:
    """The request's own switch decides, so a decline can be checked by measuring it."""
    declined = SETTLED | {"verdict": "decline", "mtp_enabled": False}
    with serving(server(declined)) as url:
        assert len(measure(Plan(tokens=4, prompts=3, url=url), Steps())[0]) == 3


def test_a_server_that_never_drafts_is_not_measured_as_a_tie() -> None:
    """Accepting the switch without drafting is an error, not a speed-up of one."""
    with serving(server(SETTLED, drafts=False)) as url, pytest.raises(BenchError, match="drafted nothing"):
        ask(Client(url), [ChatPrompt("story", "a")], 4, Steps())
