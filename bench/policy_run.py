"""Lets a fresh policy settle on each pairing, then asks every question three ways; judges nothing."""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench import launch
from bench.client import Client
from bench.errors import BenchError
from bench.pace import decode_ms, tokens_in_first_piece
from bench.progress import Progress
from bench.prompts import CHAT_PROMPTS, WARM_UP_CHAT
from bench.readiness import wait_for_drafter
from bench.regret import WAYS, Outcome, Settling, Trial, Way
from bench.reply import Reply
from bench.workloads import TEMPERATURES, Question, questions
from engine.config import EMBEDDED_MODEL

PAIRINGS: Mapping[str, str] = {"float32": EMBEDDED_MODEL, "4bit": f"{EMBEDDED_MODEL}-4bit"}
_SPECULATIVE: Mapping[Way, bool | None] = {"policy": None, "on": True, "off": False}
_WARM_UP_TOKENS = 16
_SETUP_STEPS = 3
# A sample reaches the policy a moment after its answer has ended.
_HEARD_WITHIN_S, _PERIOD_S = 2.0, 0.05


class Plan(Struct, frozen=True, kw_only=True):
    """Which pairings, as names of checkpoints by their label; what to ask, and how often.

    `per_cell` (1 to 6) questions per workload and temperature, `tokens` tokens each. The policy gets at most
    `settle_requests` requests of `settle_tokens` tokens to come to a verdict.
    """

    pairings: Mapping[str, str]
    per_cell: int
    tokens: int
    settle_requests: int
    settle_tokens: int
    serve_options: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Steps of one pairing when settling takes all its requests."""
        return _SETUP_STEPS + self.settle_requests + len(WAYS) * len(questions(self.per_cell))


class Course:
    """Announces steps, and takes back those that an early verdict makes unnecessary."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        """Announces the most there can be."""
        self._steps = len(plan.pairings) * plan.steps
        self._progress = progress
        progress.total(self._steps)

    def step(self, text: str) -> None:
        """A step begins."""
        self._progress.step(text)

    def skip(self, steps: int) -> None:
        """So many steps will not come."""
        self._steps -= steps
        self._progress.total(self._steps)


def measure(plan: Plan, progress: Progress) -> list[Outcome]:
    """Run the whole benchmark, one server after the other. Raises BenchError; leaves no process behind."""
    course = Course(plan, progress)
    return [_measure(name, model, plan, course) for name, model in plan.pairings.items()]


def _measure(name: str, model: str, plan: Plan, course: Course) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="mtp-serve-bench-") as folder:
        course.step(f"{name}: starting mtp-serve with an empty cache (Ray takes about 15 seconds)")
        options = ("--model", model, *plan.serve_options)
        server = launch.mtp_serve_fresh(options, Path(folder))
        with server.child, server.blaming():
            server.wait_until_ready()
            return observe(name, server.client, plan, course, server.child.check)


def observe(
    name: str, client: Client, plan: Plan, course: Course, check: Callable[[], None] = lambda: None
) -> Outcome:
    """Everything to be known of the pairing a ready server serves. Raises BenchError."""
    course.step(f"{name}: waiting until the server knows whether it can speculate")
    wait_for_drafter(client, check)
    course.step(f"{name}: warming up")
    for speculative in (False, True):
        client.chat(WARM_UP_CHAT, _WARM_UP_TOKENS, speculative)
    settling = settle(name, client, plan, course)
    trials = tuple(
        _ask(name, number, question, client, plan, course)
        for number, question in enumerate(questions(plan.per_cell))
    )
    return Outcome(name, settling, trials)


def settle(name: str, client: Client, plan: Plan, course: Course) -> Settling:
    """Ordinary chat requests, in turn greedy and sampled, until there is a verdict or the cap is reached."""
    body, asked = client.policy(), 0
    while not _has_settled(body) and asked < plan.settle_requests:
        prompt = CHAT_PROMPTS[asked % len(CHAT_PROMPTS)]
        course.step(
            f"{name}: request {asked + 1} of at most {plan.settle_requests} that the policy learns from"
        )
        temperature = TEMPERATURES[asked % len(TEMPERATURES)]
        client.chat(prompt.text, plan.settle_tokens, None, temperature=temperature, seed=asked)
        asked += 1
        body = _body_after(client, body)
    course.skip(plan.settle_requests - asked)
    return Settling(asked, body)


def _body_after(client: Client, before: Mapping[str, Any]) -> dict[str, Any]:
    """The policy's body once it differs from `before`, or after a moment in which it did not."""
    deadline = time.monotonic() + _HEARD_WITHIN_S
    while True:
        body = client.policy()
        if body != before or time.monotonic() > deadline:
            return body
        time.sleep(_PERIOD_S)


def _has_settled(body: Mapping[str, Any]) -> bool:
    return body["state"] == "settled"


def _ask(name: str, number: int, question: Question, client: Client, plan: Plan, course: Course) -> Trial:
    """One question all three ways; which goes first changes from question to question."""
    replies: dict[Way, Reply] = {}
    for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):
        course.step(f"{name}: {question.workload} at temperature {question.temperature:g}, {way}")
        replies[way] = _answer(client, question, plan.tokens, _SPECULATIVE[way])
    for reply in replies.values():
        _require_measurable(question, replies["off"], reply)
    return Trial(question, **replies)


def _answer(client: Client, question: Question, tokens: int, speculative: bool | None) -> Reply:
    ask = client.chat if question.is_chat else client.text
    # All ways do the same work when no answer ends early.
    return ask(
        question.text,
        tokens,
        speculative,
        temperature=question.temperature,
        seed=question.seed,
        ignore_eos=True,
    )


def _require_measurable(question: Question, plain: Reply, reply: Reply) -> None:
    if reply.completion_tokens <= tokens_in_first_piece(plain, reply) or decode_ms(reply) <= 0:
        raise BenchError(
            f"the answer to {question.text[:60]!r} had {reply.completion_tokens} token(s), too few to measure"
        )
