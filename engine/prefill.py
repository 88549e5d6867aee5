"""Runs one prompt through the model in chunks, priming the drafter and keeping what the prompt cache wants.

Chunk boundaries lie at absolute multiples of the chunk, whatever was cached and whoever else is served, so a
prompt's bytes depend on the prompt alone.
"""

from typing import Any

import mlx.core as mx

from engine.forwarder import Forwarder
from engine.history import DraftHistory
from engine.prompt_cache import PromptState
from engine.sequence import Sequence
from speculative.rollback import clone_caches


class Prefill:
    """One prompt on its way; the last token is left to the first decode step.

    With `leaves_end`, what follows the last whole chunk is left as well, to be run together with the ends of
    other prompts.
    """

    def __init__(
        self,
        sequence: Sequence,
        forwarder: Forwarder,
        chunk: int,
        start: PromptState | None,
        history: DraftHistory | None,
    ) -> None:
        """`start` holds a cached prefix, whose history is already in `history`."""
        self.sequence = sequence
        self.history = history
        self.caches: list[Any] = start.caches if start else forwarder.make_cache()
        self.snapshot: PromptState | None = None
        self.leaves_end = False
        self._forwarder = forwarder
        self._chunk = chunk
        self._done = start.length if start else 0
        self._boundary_features: list[mx.array] = list(start.boundary_features) if start else []
        sequence.cached_tokens = self._done

    @property
    def is_done(self) -> bool:
        """Whether nothing is left but what is not this prefill's to do."""
        return self._done >= (self._last_boundary() if self.leaves_end else self._end())

    @property
    def unfed(self) -> tuple[int, ...]:
        """Tokens between what has been run and the last one."""
        return self.sequence.request.prompt[self._done : -1]

    def step(self) -> None:
        """Run one chunk; afterwards `snapshot` holds the last whole-chunk prefix, if this chunk made it."""
        self.snapshot = None
        if self.is_done:
            return
        end = min((self._done // self._chunk + 1) * self._chunk, self._end())
        tokens = self.sequence.request.prompt[self._done : end]
        out = self._forwarder(mx.array([tokens]), self.caches)
        if self.history is not None and out.features is not None:
            self.history.prime(tokens, out.features)
            self._boundary_features.append(out.features[:, -1:])
        mx.eval([cache.state for cache in self.caches], self._boundary_features)
        self._done = end
        if self._done == self._last_boundary() > 0:
            self.snapshot = self._snapshot()

    def _end(self) -> int:
        return len(self.sequence.request.prompt) - 1

    def _last_boundary(self) -> int:
        return self._end() // self._chunk * self._chunk

    def _snapshot(self) -> PromptState:
        history = None
        if self.history is not None:
            history = clone_caches(self.history.state.caches)
        return PromptState(
            caches=clone_caches(self.caches),
            history_caches=history,
            boundary_features=tuple(self._boundary_features),
            length=self._done,
        )
