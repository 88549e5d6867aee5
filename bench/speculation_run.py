"""Asks one server every prompt with and without speculation, in turn; judging is not its business."""

import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench import launch
from bench.client import Client
from bench.errors import BenchError
from bench.pace import decode_ms
from bench.progress import Progress
from bench.prompts import CHAT_PROMPTS, WARM_UP_CHAT, ChatPrompt
from bench.readiness import wait_for_drafter
from bench.reply import Reply
from bench.speculation import Pair

_WARM_UP_TOKENS = 16


class Plan(Struct, frozen=True, kw_only=True):
    """Which server: `url` of a running one, else one started with `serve_options`.

    The first `prompts` (1 to 20) of the built-in prompts are asked, for `tokens` tokens each.
    """

    tokens: int
    prompts: int = len(CHAT_PROMPTS)
    url: str | None = None
    api_key: str | None = None
    serve_options: tuple[str, ...] = ()


class Target(Struct, frozen=True):
    """A server to measure and what explains its failures; `check` raises when its process has ended."""

    client: Client
    blaming: AbstractContextManager[None]
    check: Callable[[], None]


def measure(plan: Plan, progress: Progress) -> tuple[list[Pair], dict[str, Any]]:
    """Run the whole benchmark; returns the pairs and the policy's body afterwards.

    Raises BenchError, also when the server cannot or did not speculate. Leaves no process behind.
    """
    prompts = CHAT_PROMPTS[: plan.prompts]
    progress.total(3 + 2 * len(prompts))
    with _target(plan, progress) as target, target.blaming:
        progress.step("waiting until the server knows whether it can speculate")
        wait_for_drafter(target.client, target.check)
        progress.step("warming up")
        for speculative in (False, True):
            target.client.chat(WARM_UP_CHAT, _WARM_UP_TOKENS, speculative)
        pairs = ask(target.client, prompts, plan.tokens, progress)
        return pairs, target.client.policy()


def ask(client: Client, prompts: Sequence[ChatPrompt], tokens: int, progress: Progress) -> list[Pair]:
    """Every prompt both ways, the first way alternating. Raises BenchError."""
    pairs: list[Pair] = []
    for number, prompt in enumerate(prompts):
        replies: dict[bool, Reply] = {}
        for speculative in (False, True) if number % 2 == 0 else (True, False):
            way = "MTP" if speculative else "plain"
            progress.step(f"prompt {number + 1} of {len(prompts)} ({prompt.kind}), {way}")
            replies[speculative] = _checked(client.chat(prompt.text, tokens, speculative), prompt)
        pairs.append(Pair(prompt, plain=replies[False], mtp=replies[True]))
    if all(pair.mtp.draft is None for pair in pairs):
        raise BenchError(
            f"the server at {client.url} accepted requests to speculate but drafted nothing for any of them"
        )
    return pairs


@contextmanager
def _target(plan: Plan, progress: Progress) -> Generator[Target]:
    if plan.url is not None:
        progress.step(f"asking the server at {plan.url}")
        yield Target(Client(plan.url, plan.api_key), nullcontext(), lambda: None)
        return
    with tempfile.TemporaryDirectory(prefix="mtp-serve-bench-") as logs:
        progress.step("starting mtp-serve (Ray takes about 15 seconds)")
        server = launch.mtp_serve(plan.serve_options, Path(logs))
        with server.child:
            server.wait_until_ready()
            yield Target(server.client, server.blaming(), server.child.check)


def _checked(reply: Reply, prompt: ChatPrompt) -> Reply:
    if reply.completion_tokens < 2 or decode_ms(reply) <= 0:
        raise BenchError(
            f"the answer to {prompt.text!r} had {reply.completion_tokens} token(s), too few to measure"
        )
    if reply.draft is not None and reply.draft.draft_rounds < 2:
        raise BenchError(f"the answer to {prompt.text!r} took a single round, too few to measure")
    return reply
