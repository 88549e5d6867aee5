"""The batch lane: mlx-lm's BatchGenerator, fed with sequences and drained token by token.

Owns the mapping between sequences and the generator's rows; decides nothing about when a sequence ends.
"""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import BatchGenerator, StopSequences
from msgspec import Struct

from engine.sampling import logits_processors, row_sampler
from engine.sequence import Sequence
from messages.requests import RequestId


class RowToken(Struct, frozen=True, gc=False):
    """One token of one row with its log-probability row [vocabulary], natural log."""

    sequence: Sequence
    token_id: int
    logprobs: mx.array


class KVState(Struct, frozen=True):
    """A sequence's caches and the token ids they hold, in order."""

    caches: list[Any]
    token_ids: list[int]


class BatchLane:
    """Sequences that decode together, one token per row per step.

    Prompts are prefilled one at a time in chunks of `prefill_chunk` tokens, so the bytes of a prompt's cache
    never depend on which other prompts arrived with it.
    """

    def __init__(self, model: nn.Module, num_slots: int, prefill_chunk: int, context_length: int) -> None:
        """`context_length` bounds how far back penalties look, in tokens."""
        self._context_length = context_length
        self._rows: dict[int, Sequence] = {}
        self._uids: dict[RequestId, int] = {}
        self._generator = BatchGenerator(
            model,
            completion_batch_size=num_slots,
            prefill_batch_size=1,
            prefill_step_size=prefill_chunk,
        )

    def __len__(self) -> int:
        """Number of sequences in the lane, prefilling ones included."""
        return len(self._rows)

    def insert(self, sequence: Sequence, state: KVState | None = None) -> None:
        """Add a sequence; `state` holds caches for a prefix of its tokens, never all of them."""
        request = sequence.request
        tokens = [*request.prompt, *sequence.token_ids]
        prefix = state.token_ids if state else []
        (uid,) = self._generator.insert(
            [tokens[len(prefix) :]],
            # One above what the sequence may emit: ending it is the sequence's decision.
            max_tokens=[sequence.remaining_tokens + 1],
            caches=[state.caches] if state else None,
            all_tokens=[list(prefix)],
            samplers=[row_sampler(request.sampling, len(sequence.token_ids))],
            logits_processors=[
                logits_processors(request.sampling, len(request.prompt), self._context_length)
            ],
            stop_sequences=[StopSequences()],
        )
        self._rows[uid] = sequence
        self._uids[request.request_id] = uid

    def step(self) -> list[RowToken]:
        """Run one decode step and one prefill chunk; returns the tokens that became known."""
        _, responses = self._generator.next()
        return [RowToken(self._rows[r.uid], int(r.token), r.logprobs) for r in responses]

    def remove(self, request_id: RequestId, keep_state: bool = False) -> KVState | None:
        """Take a sequence out between steps; with `keep_state`, return its caches.

        Unknown ids are ignored, since a sequence may leave for two reasons at once.
        """
        uid = self._uids.pop(request_id, None)
        if uid is None:
            return None
        del self._rows[uid]
        caches = self._generator.remove([uid], return_prompt_caches=keep_state)
        return KVState(*caches[uid]) if keep_state else None

    def close(self) -> None:
        """Release the generator's wired-memory limit."""
        self._generator.close()
