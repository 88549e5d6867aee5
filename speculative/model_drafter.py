"""The classic drafter: a smaller model with the same vocabulary, which never sees the target's hiddens.

Knows mlx-lm models and caches. Reports itself as "model", because it is no MTP.
"""

from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from speculative.draft_noise import DraftNoise, choose_draft
from speculative.rollback import clone_caches
from speculative.target import Target

# A model knows as much of the text as its target does, unlike a head; drafting for itself it is always right.
_SHARPNESS = 1.0


class ModelState:
    """Caches of the draft model over the tokens it has read, and decided tokens it has yet to read.

    `waiting` carries no information here; it says that a token is still to come, as with every drafter.
    """

    def __init__(self, caches: list[Any]) -> None:
        self.caches = caches
        self.length = 0
        self.waiting: mx.array | None = None
        self.pending: list[int] = []


class ModelDrafter:
    """A `Drafter` that decodes with a model of its own."""

    kind: Literal["model"] = "model"

    def __init__(self, model: nn.Module, block_size: int = 4) -> None:
        if block_size < 2:
            raise ValueError(f"block_size is {block_size}; it must be at least 2")
        self.block_size = block_size
        self._model = Target(model)

    def why_incompatible(self, target: Target) -> str | None:
        """The reason why this model cannot draft for `target`, or None."""
        if self._model.vocab_size != target.vocab_size:
            return f"the draft model has {self._model.vocab_size} tokens, the target {target.vocab_size}"
        return None

    def bind(self, target: Target) -> None:
        """Checks the vocabulary; nothing is shared. Raises ValueError when incompatible."""
        if reason := self.why_incompatible(target):
            raise ValueError(reason)

    def make_state(self) -> ModelState:
        """An empty history."""
        return ModelState(make_prompt_cache(self._model.model))

    def prime(self, state: ModelState, tokens: Sequence[int], features: mx.array) -> None:
        """Reads a chunk of the prompt."""
        state.pending += tokens
        state.waiting = features[:, -1:]
        mx.async_eval(self._read(state))

    def extend(self, state: ModelState, tokens: Sequence[int], features: mx.array) -> None:
        """Takes note of decided tokens; they are read, in one forward, when drafting goes on."""
        state.pending += tokens
        state.waiting = None

    def _read(self, state: ModelState) -> mx.array:
        """Reads the pending tokens; returns the logits [1, L, V]."""
        logits = self._model.forward(mx.array([state.pending]), state.caches).logits
        state.length += len(state.pending)
        state.pending = []
        return logits

    def draft(
        self, state: ModelState, depth: int, target_caches: Sequence[Any], noise: DraftNoise | None = None
    ) -> mx.array:
        """Proposes int32 [depth] ids by decoding; raises ValueError when no decided token is unread."""
        if not state.pending:
            raise ValueError("the draft model has no generated token to draft from")
        ids = [choose_draft(self._read(state)[:, -1:], noise, 0, sharpness=_SHARPNESS)]
        # Only plain KV can take rows back; other caches are small enough to draft on a copy.
        scratch = [c if type(c) is KVCache else clone_caches([c])[0] for c in state.caches]
        while len(ids) < depth:
            logits = self._model.forward(ids[-1], scratch).logits
            ids.append(choose_draft(logits, noise, len(ids), sharpness=_SHARPNESS))
        for cache in state.caches:
            if type(cache) is KVCache:
                cache.trim(depth - 1)
        return mx.concatenate(ids, axis=1)[0].astype(mx.int32)
