"""The drafter over Inkling's MTP depths: depth j proposes the token j places after the next one.

Owns how the depths are fed: confirmed tokens for the slots that have them, proposals for the rest, which are
rewound. Knows the target only through what both share.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import msgspec

from speculative.draft_noise import DraftNoise, choose_draft
from speculative.head_state import prompt_pairs
from speculative.hooks import block_forward
from speculative.inkling_head import InklingHead, load_inkling_head
from speculative.inkling_model import ModelArgs
from speculative.inkling_state import InklingState
from speculative.rollback import Attention, OpenBlock
from speculative.target import Target

# Depths that nobody asks for are brought up to date once this many rows wait for them.
CATCH_UP_ROWS = 64


class InklingDrafter:
    """A `Drafter` that proposes one token per depth, at most as many as there are depths."""

    kind: Literal["mtp"] = "mtp"

    def __init__(self, head: InklingHead, args: ModelArgs) -> None:
        self._head = head
        self._args = args
        self._target: Target | None = None

    @property
    def block_size(self) -> int:
        """Rows of a verify forward when every depth proposes."""
        return len(self._head.depths) + 1

    def why_incompatible(self, target: Target) -> str | None:
        """The reason why these depths cannot serve `target`, or None."""
        if target.hidden_size != self._args.hidden_size:
            return f"Inkling's MTP has hidden size {self._args.hidden_size}, the target {target.hidden_size}"
        if target.vocab_size != self._args.vocab_size:
            return f"Inkling's MTP has {self._args.vocab_size} tokens, the target {target.vocab_size}"
        if not hasattr(target.inner, "embed"):
            return f"Inkling's MTP needs an Inkling target; this one is {target.model_type!r}"
        return None

    def bind(self, target: Target) -> None:
        """Shares embedding, final norm and output head; raises ValueError when incompatible."""
        if reason := self.why_incompatible(target):
            raise ValueError(reason)
        self._target = target

    def make_state(self) -> InklingState:
        """An empty history."""
        return InklingState(len(self._head.depths))

    def prime(self, state: InklingState, tokens: Sequence[int], features: mx.array) -> None:
        """Appends a chunk of the prompt, at every depth."""
        pairs, state.waiting = prompt_pairs(state.waiting, tokens, features)
        if pairs is not None:
            self._append(state, *pairs)
            self._catch_up(state)
        mx.async_eval([cache.state for cache in state.caches])

    def extend(self, state: InklingState, tokens: Sequence[int], features: mx.array) -> None:
        """Appends computed pairs; deeper depths read them when they draft."""
        state.waiting = None
        self._append(state, mx.array([list(tokens)]), features)
        unread = state.unread(0)
        if unread is not None and unread.shape[1] > CATCH_UP_ROWS:
            self._catch_up(state)

    def draft(
        self, state: InklingState, depth: int, target_caches: Sequence[Any], noise: DraftNoise | None = None
    ) -> mx.array:
        """Proposes int32 ids, one per depth and at most `depth`; ValueError without a generated token."""
        rows = state.unread(0)
        if rows is None or state.waiting is not None:
            raise ValueError("Inkling's MTP has no generated token to draft from")
        ids = [self._best(rows, noise, 0)]
        for index in range(1, min(depth, state.num_depths)):
            rows = self._propose(state, index, rows, ids)
            ids.append(self._best(rows, noise, index))
        state.forget()
        return mx.concatenate(ids, axis=1)[0]

    def _best(self, rows: mx.array, noise: DraftNoise | None, index: int) -> mx.array:
        """The token int32 [1, 1] to propose as draft `index` after the last of raw rows [1, L, H]."""
        target = self._bound()
        logits = target.logits(target.inner.norm(rows[:, -1:]))
        return choose_draft(logits, noise, index).astype(mx.int32)

    def _append(self, state: InklingState, ids: mx.array, features: mx.array) -> None:
        embeddings = self._bound().inner.embed(ids)
        state.append(ids, self._head.depths[0](embeddings, features, state.cache(0)))

    def _catch_up(self, state: InklingState) -> None:
        """Every depth reads the slots whose tokens are all confirmed."""
        for depth in range(1, state.num_depths):
            missing = state.count(0) - depth - state.count(depth)
            rows, tokens = state.unread(depth - 1), state.tokens
            if missing > 0 and rows is not None and tokens is not None:
                embeddings = self._bound().inner.embed(tokens[:, -missing:])
                hiddens = self._head.chained(rows[:, :missing])
                out = self._head.depths[depth](embeddings, hiddens, state.cache(depth))
                state.advance(depth, out)
        state.forget()

    def _propose(self, state: InklingState, depth: int, rows: mx.array, ids: list[mx.array]) -> mx.array:
        """One depth reads every slot it lacks, `ids` standing in for tokens not yet confirmed.

        `rows` [1, n, H] are the previous depth's outputs for those slots. Returns this depth's outputs for
        the slots the next one lacks; only confirmed slots stay in the cache.
        """
        earlier, known = state.unread(depth), state.tokens
        tokens = mx.concatenate([*([] if known is None else [known]), *ids], axis=1)
        length = rows.shape[1]
        embeddings = self._bound().inner.embed(tokens[:, -length:])
        confirmed = max(0, length - depth)
        block = OpenBlock([state.cache(depth)], length, Attention())
        with block_forward(block.context):
            out = self._head.depths[depth](embeddings, self._head.chained(rows), block.views[0])
        block.keep(confirmed)
        if confirmed:
            state.advance(depth, out[:, :confirmed])
        return out if earlier is None else mx.concatenate([earlier, out], axis=1)

    def _bound(self) -> Target:
        if self._target is None:
            raise ValueError("Inkling's MTP is not bound to a target")
        return self._target


def load_inkling_drafter(folder: Path, target: Target, bits: int | None = None) -> InklingDrafter:
    """The drafter in an Inkling checkpoint folder; errors as `load_inkling_head`."""
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    return InklingDrafter(*load_inkling_head(folder, config, target.dtype, bits))
