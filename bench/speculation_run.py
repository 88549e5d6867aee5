"""Asks one server every prompt with and without speculation, in turn; judging is not its business."""

import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench import launch
from bench.client import Client
from bench.errors import BenchError
from bench.progress import Progress
from bench.prompts import CHAT_PROMPTS, WARM_UP_CHAT, ChatPrompt
from bench.reply import Reply
from bench.speculation import Pair

_WARM_UP_TOKENS = 16
_CANNOT_SPECULATE: Mapping[str, str] = {
    "no_mtp_dispatch": "it has no drafter (policy state unavailable, reason no_mtp_dispatch), so there is "
    "nothing to compare; give it one",
    "worker_not_ready": "its model is not ready yet; try again when it is",
}


class Plan(Struct, frozen=True, kw_only=True):
    """Which server: `url` of a running one, else one started with `serve_options`; `tokens` per answer."""

    tokens: int
    url: str | None = None
    api_key: str | None = None
    serve_options: tuple[str, ...] = ()


class Target(Struct, frozen=True):
    """A server to measure and what explains its failures."""

    client: Client
    blaming: AbstractContextManager[None]


def measure(plan: Plan, progress: Progress) -> tuple[list[Pair], dict[str, Any]]:
    """Run the whole benchmark; returns the pairs and the policy's body afterwards.

    Raises BenchError, also when the server cannot or did not speculate. Leaves no process behind.
    """
    progress.total(2 + 2 * len(CHAT_PROMPTS))
    with _target(plan, progress) as target, target.blaming:
        require_drafter(target.client)
        progress.step("warming up")
        for speculative in (False, True):
            target.client.chat(WARM_UP_CHAT, _WARM_UP_TOKENS, speculative)
        pairs = ask(target.client, CHAT_PROMPTS, plan.tokens, progress)
        return pairs, target.client.policy()


def require_drafter(client: Client) -> None:
    """Raise BenchError when the server's policy says that no request can speculate."""
    policy = client.policy()
    if (why := _CANNOT_SPECULATE.get(policy["reason"] or "")) is not None:
        raise BenchError(f"the server at {client.url} cannot speculate: {why}")
    if policy["state"] == "exactness_declined" and not policy["mtp_enabled"]:
        raise BenchError(
            f"the server at {client.url} cannot speculate: its exactness probe vetoed the pairing "
            f"({policy['decline_detail']})"
        )


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
        yield Target(Client(plan.url, plan.api_key), nullcontext())
        return
    with tempfile.TemporaryDirectory(prefix="mtp-serve-bench-") as logs:
        progress.step("starting mtp-serve (Ray takes about 15 seconds)")
        server = launch.mtp_serve(plan.serve_options, Path(logs))
        with server.child:
            server.wait_until_ready()
            yield Target(server.client, server.blaming())


def _checked(reply: Reply, prompt: ChatPrompt) -> Reply:
    if reply.decode_tps <= 0:
        raise BenchError(
            f"the answer to {prompt.text!r} had {reply.completion_tokens} token(s), too few to measure"
        )
    if reply.draft is not None and reply.draft.draft_rounds < 2:
        raise BenchError(f"the answer to {prompt.text!r} took a single round, too few to measure")
    return reply
