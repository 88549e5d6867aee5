"""A drafter whose proposals a test decides, and which checks that its history is complete."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import mlx.core as mx

from speculative.chained_head import ChainedHeadDrafter, HeadTraits
from speculative.draft_noise import DraftNoise
from speculative.generic_head import GenericHead, GenericHeadConfig
from speculative.target import Target

# (whole text so far, prompt included; depth) -> proposals
Script = Callable[[list[int], int], list[int]]


class CheckedHistory:
    """Every token with the feature before it; `waiting` as in the protocol."""

    def __init__(self) -> None:
        self.caches: list[Any] = []
        self.length = 0
        self.waiting: mx.array | None = None
        self.tokens: list[int] = []


class ScriptedDrafter:
    """Proposes what its script says about the text it was told; raises what the script raises."""

    kind = "mtp"
    block_size = 4

    def __init__(self, script: Script) -> None:
        self._script = script

    def why_incompatible(self, target: Target) -> str | None:
        """Fits everything."""
        return None

    def bind(self, target: Target) -> None:
        """Shares nothing."""

    def make_state(self) -> CheckedHistory:
        """An empty history."""
        return CheckedHistory()

    def prime(self, state: CheckedHistory, tokens: Sequence[int], features: mx.array) -> None:
        """Tokens with their own features."""
        assert features.shape[1] == len(tokens)
        new = list(tokens) if state.waiting is not None or not state.tokens else list(tokens[1:])
        state.tokens += new
        state.waiting = features[:, -1:]
        state.length = len(state.tokens) - 1

    def extend(self, state: CheckedHistory, tokens: Sequence[int], features: mx.array) -> None:
        """Tokens with the features before them."""
        assert features.shape[1] == len(tokens)
        state.tokens += tokens
        state.waiting = None
        state.length = len(state.tokens) - 1

    def draft(
        self, state: CheckedHistory, depth: int, target_caches: Sequence[Any], noise: DraftNoise | None = None
    ) -> mx.array:
        """What the script says."""
        assert state.waiting is None
        return mx.array(self._script(state.tokens, depth), dtype=mx.int32)


def following(texts: Sequence[Sequence[int]], right: Callable[[int, int], int]) -> ScriptedDrafter:
    """Proposes the continuation of whichever known text it is in, right for `right(length, depth)` tokens.

    An assertion fails when it is told a text that is none of the known ones: its history has a hole.
    """

    def script(told: list[int], depth: int) -> list[int]:
        known = next((text for text in texts if list(text[: len(told)]) == told), None)
        assert known is not None, f"unknown history {told}"
        proposal = [*known[len(told) : len(told) + depth], *[0] * depth][:depth]
        correct = right(len(told), depth)
        return [token if i < correct else (token + 1) % 90 for i, token in enumerate(proposal)]

    return ScriptedDrafter(script)


class RecordingHead(ChainedHeadDrafter):
    """A random generic head that remembers its proposals."""

    proposed: ClassVar[list[mx.array]] = []

    def __init__(self, target: Target) -> None:
        mx.random.seed(4)
        args = target.text_args
        config = GenericHeadConfig(
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            num_attention_heads=args.num_attention_heads,
            num_key_value_heads=args.num_key_value_heads,
            intermediate_size=64,
        )
        traits = HeadTraits(name="a random head", hidden_size=32, vocab_size=target.vocab_size, block_size=4)
        super().__init__(GenericHead(config), traits)
        self.bind(target)

    def draft(
        self, state: Any, depth: int, target_caches: Sequence[Any], noise: DraftNoise | None = None
    ) -> mx.array:
        """As the head does, remembered."""
        drafts = super().draft(state, depth, target_caches, noise)
        self.proposed.append(drafts)
        return drafts
