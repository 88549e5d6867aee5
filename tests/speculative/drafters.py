"""Hand-written drafters whose proposals the tests decide."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from speculative.draft_noise import DraftNoise
from speculative.target import Target
from tests.speculative import tiny

# (emitted so far without the prompt, depth) -> proposals
Script = Callable[[list[int], int], list[int]]


class History:
    """The generated tokens, and how often features were handed over with them."""

    def __init__(self) -> None:
        self.caches: list[Any] = []
        self.length = 0
        self.waiting: mx.array | None = None
        self.tokens: list[int] = []
        self.rows = 0


class ScriptedDrafter:
    """Proposes what its script says; raises where the script raises."""

    kind = "mtp"
    block_size = 4

    def __init__(self, script: Script) -> None:
        self._script = script

    def why_incompatible(self, target: Target) -> str | None:
        return None

    def bind(self, target: Target) -> None:
        pass

    def make_state(self) -> History:
        return History()

    def prime(self, state: History, tokens: Sequence[int], features: mx.array) -> None:
        state.rows += features.shape[1]

    def extend(self, state: History, tokens: Sequence[int], features: mx.array) -> None:
        assert features.shape[1] == len(tokens)
        state.tokens += tokens
        state.rows += len(tokens)

    def draft(
        self, state: History, depth: int, target_caches: Sequence[Any], noise: DraftNoise | None = None
    ) -> mx.array:
        return mx.array(self._script(state.tokens, depth), dtype=mx.int32)


def perfect(text: Sequence[int]) -> ScriptedDrafter:
    """Proposes exactly what plain decode will emit; `text` is that, from the first generated token."""
    return ScriptedDrafter(lambda done, depth: [*text[len(done) : len(done) + depth], *[0] * depth][:depth])


def random_drafter(seed: int = 5) -> ScriptedDrafter:
    source = random.Random(seed)
    return ScriptedDrafter(lambda done, depth: [source.randrange(tiny.VOCAB) for _ in range(depth)])


def doubtful(text: Sequence[int]) -> ScriptedDrafter:
    """As `scripted`, but proposes fewer tokens than asked for in turn: chains of every length occur."""
    script = scripted(text)._script
    return ScriptedDrafter(lambda done, depth: script(done, depth)[: 1 + len(done) % depth])


def scripted(text: Sequence[int]) -> ScriptedDrafter:
    """Right for a varying number of tokens, then wrong: every accepted length occurs."""

    def script(done: list[int], depth: int) -> list[int]:
        proposal = [*text[len(done) : len(done) + depth], *[0] * depth][:depth]
        right = (len(done) * 5 + 1) % (depth + 1)
        return [t if i < right else (t + 1) % tiny.VOCAB for i, t in enumerate(proposal)]

    return ScriptedDrafter(script)
