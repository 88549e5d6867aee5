"""What a drafter is to the round loop: a protocol and the history it keeps per request.

A *pair* is (feature of position i, token at i + 1): all a drafter learns about the text. After a round the
target's features of rows 0..n and the n + 1 emitted tokens are the next n + 1 pairs; after a plain step its
one feature and the token picked from it are the next pair.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from messages.events import DraftKind
from speculative.draft_noise import DraftNoise
from speculative.target import Target


class DrafterState(Protocol):
    """One request's drafting history, owned by the request.

    `caches` are mlx-lm caches and may be stored next to the target's (empty when the drafter keeps none);
    `length` counts the pairs they hold that the target has confirmed. `waiting` [1, 1, F] is the feature
    after which no token is known yet, or None.
    """

    caches: list[Any]
    length: int
    waiting: mx.array | None


class Drafter(Protocol):
    """Proposes tokens for a bound target. Wrong proposals cost time, never correctness.

    Tokens are plain ints and features [1, L, F] as `Target.forward` returns them. The calls of one request:
    make_state, prime per prefill chunk, extend with the first generated token, then draft and extend in turn.
    No method waits for the device.
    """

    @property
    def kind(self) -> DraftKind:
        """What the drafter calls itself on responses."""
        ...

    @property
    def block_size(self) -> int:
        """Rows per verify forward the drafter was made for."""
        ...

    def why_incompatible(self, target: Target) -> str | None:
        """The reason why this drafter cannot serve `target`, naming both values, or None."""
        ...

    def bind(self, target: Target) -> None:
        """Shares what drafter and target have in common; once. Raises ValueError when incompatible."""
        ...

    def make_state(self) -> Any:
        """An empty `DrafterState`."""
        ...

    def prime(self, state: Any, tokens: Sequence[int], features: mx.array) -> None:
        """Appends a chunk of the prompt: feature i belongs to the position of token i.

        The last feature stays in `waiting` until the next chunk or the first generated token.
        """
        ...

    def extend(self, state: Any, tokens: Sequence[int], features: mx.array) -> None:
        """Appends pairs the target has computed: token i follows feature i; undoes what drafting assumed."""
        ...

    def draft(
        self, state: Any, depth: int, target_caches: Sequence[Any], noise: DraftNoise | None = None
    ) -> mx.array:
        """Proposes int32 ids, at least 1 and at most `depth`, to follow the last token of the history.

        `noise` comes with rounds of sampled requests: drafts chosen with it are kept more often. A drafter
        whose proposals are not picked from logits may ignore it. Raises ValueError when the history does not
        end in a token of this text.
        """
        ...
