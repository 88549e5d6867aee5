"""The batch lane: mlx-lm's BatchGenerator, fed with decoding sequences and drained token by token.

Owns the mapping between sequences and the generator's rows; decides nothing about when a sequence ends.
"""

from typing import cast

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import BatchGenerator, StopSequences
from msgspec import Struct

from engine.decoding import Decoding
from engine.forwarder import Forwarder, RecordingModel
from engine.sampling import logits_processors, row_sampler
from messages.requests import RequestId


class RowToken(Struct, frozen=True, gc=False):
    """One token of one row with its log-probability row [V], natural log."""

    decoding: Decoding
    token_id: int
    logprobs: mx.array


class BatchLane:
    """Sequences that decode together, one token per row per step."""

    def __init__(self, forwarder: Forwarder, num_slots: int, context_length: int) -> None:
        """`context_length` bounds how far back penalties look, in tokens."""
        self._context_length = context_length
        self._rows: dict[int, Decoding] = {}
        # Rows whose bonus has been inserted but not yet fed, in the order the generator will feed them.
        self._unfed: list[int] = []
        self._model = RecordingModel(forwarder)
        self._generator = BatchGenerator(
            cast(nn.Module, self._model), completion_batch_size=num_slots, prefill_batch_size=num_slots
        )

    def __len__(self) -> int:
        """Number of sequences in the lane."""
        return len(self._rows)

    def sole(self) -> Decoding | None:
        """The only sequence in the lane, if there is exactly one."""
        return next(iter(self._rows.values())) if len(self._rows) == 1 else None

    def insert(self, decoding: Decoding) -> None:
        """Add a sequence without a pending step."""
        sequence = decoding.sequence
        request = sequence.request
        known = [*request.prompt, *sequence.token_ids]
        (uid,) = self._generator.insert(
            [[decoding.bonus]],
            # One above what the sequence may emit: ending it is the sequence's decision.
            max_tokens=[sequence.remaining_tokens + 1],
            caches=[decoding.caches],
            all_tokens=[known[:-1]],
            samplers=[row_sampler(request.sampling, decoding.position)],
            logits_processors=[
                logits_processors(request.sampling, len(request.prompt), self._context_length)
            ],
            stop_sequences=[StopSequences()],
        )
        self._rows[uid] = decoding
        self._unfed.append(uid)

    def step(self) -> list[RowToken]:
        """Run one decode step; returns the tokens that became known."""
        fed = [uid for uid in self._generator._generation_batch.uids if uid in self._rows]
        _, responses = self._generator.next()
        calls = self._take_calls()
        if fed:
            features = calls.pop(0)
            for index, response in enumerate(responses):
                self._fed(response.uid, int(response.token), features, index)
        if calls:
            # The generator feeds what was inserted since the last step in one further call.
            features = calls.pop(0)
            for index, uid in enumerate(self._unfed):
                self._note(self._rows[uid], self._rows[uid].bonus, features, index)
            self._unfed = []
        return [RowToken(self._rows[r.uid], int(r.token), r.logprobs) for r in responses]

    def leave(self, decoding: Decoding) -> tuple[int, mx.array] | None:
        """Take a sequence out, giving it its caches and its pending token back.

        Returns that token and its log-probability row: decided, not yet emitted. None when the sequence has
        not been fed since it entered; its bonus is then still the one it came with.
        """
        uid = self._uid(decoding.sequence.request.request_id)
        if uid is None:
            raise LookupError(f"{decoding.sequence.request.request_id} is not in the batch lane")
        pending = self._pending(uid)
        caches, _ = self._generator.remove([uid], return_prompt_caches=True)[uid]
        decoding.caches = caches
        self._forget(uid)
        return pending

    def remove(self, request_id: RequestId) -> None:
        """Drop a sequence and its caches; one that is not here has left already."""
        uid = self._uid(request_id)
        if uid is not None:
            self._generator.remove([uid])
            self._forget(uid)

    def close(self) -> None:
        """Release the generator's wired-memory limit."""
        self._generator.close()

    def _pending(self, uid: int) -> tuple[int, mx.array] | None:
        # BatchGenerator keeps the next token to itself; redrawing it would need a cache that can be cut.
        batch = self._generator._generation_batch
        tokens = batch._next_tokens
        if tokens is None or uid not in batch.uids:
            return None
        index = batch.uids.index(uid)
        return int(cast(int, tokens[index].item())), batch._next_logprobs[index]

    def _fed(self, uid: int, token_id: int, features: mx.array | None, index: int) -> None:
        decoding = self._rows[uid]
        self._note(decoding, token_id, features, index)
        decoding.bonus = token_id

    def _note(self, decoding: Decoding, token_id: int, features: mx.array | None, index: int) -> None:
        if decoding.history is not None and features is not None:
            decoding.history.note(token_id, features[index : index + 1])

    def _take_calls(self) -> list[mx.array | None]:
        calls, self._model.calls = self._model.calls, []
        return calls

    def _uid(self, request_id: RequestId) -> int | None:
        found = (uid for uid, d in self._rows.items() if d.sequence.request.request_id == request_id)
        return next(found, None)

    def _forget(self, uid: int) -> None:
        del self._rows[uid]
        self._unfed = [other for other in self._unfed if other != uid]
