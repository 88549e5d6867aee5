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

    def __init__(self, forwarder: Forwarder, num_slots: int, context_length: int, prefill_chunk: int) -> None:
        """`context_length` bounds how far back penalties look; unfed prompt ends fit into `prefill_chunk`."""
        self._context_length = context_length
        self._rows: dict[int, Decoding] = {}
        self._model = RecordingModel(forwarder)
        self._generator = BatchGenerator(
            cast(nn.Module, self._model),
            completion_batch_size=num_slots,
            prefill_batch_size=num_slots,
            prefill_step_size=prefill_chunk,
        )

    def __len__(self) -> int:
        """Number of sequences in the lane."""
        return len(self._rows)

    def sole(self) -> Decoding | None:
        """The only sequence in the lane, if there is exactly one and it is past its prompt."""
        if len(self._rows) != 1:
            return None
        ((uid, decoding),) = self._rows.items()
        return decoding if uid in self._generator._generation_batch.uids else None

    def insert(self, decoding: Decoding) -> None:
        """Add a sequence without a pending step."""
        sequence = decoding.sequence
        request = sequence.request
        known = [*request.prompt, *sequence.token_ids]
        (uid,) = self._generator.insert(
            [[*decoding.unfed, decoding.bonus]],
            # One above what the sequence may emit: ending it is the sequence's decision.
            max_tokens=[sequence.remaining_tokens + 1],
            caches=[decoding.caches],
            all_tokens=[known[: len(known) - 1 - len(decoding.unfed)]],
            samplers=[row_sampler(request.sampling, decoding.position)],
            logits_processors=[
                logits_processors(request.sampling, len(request.prompt), self._context_length)
            ],
            stop_sequences=[StopSequences()],
        )
        self._rows[uid] = decoding
        decoding.was_batched = True

    def step(self) -> list[RowToken]:
        """Run one decode step and the waiting prompt ends; returns the tokens that became known."""
        generator = self._generator
        decoded = list(generator._generation_batch.uids)
        _, responses = generator.next()
        started = [uid for uid in generator._generation_batch.uids if uid not in decoded]
        self._note_calls(decoded, started, {r.uid: int(r.token) for r in responses})
        return [RowToken(self._rows[r.uid], int(r.token), r.logprobs) for r in responses]

    def leave(self, decoding: Decoding) -> tuple[int, mx.array]:
        """Take a sequence that is past its prompt out, giving it its caches back.

        Returns its pending token, decided but not yet emitted, and that token's log-probability row. Raises
        LookupError for a sequence that is not decoding here.
        """
        uid = self._uid(decoding.sequence.request.request_id)
        # BatchGenerator keeps the next token to itself; redrawing it would need a cache that can be cut.
        batch = self._generator._generation_batch
        tokens = batch._next_tokens
        if uid is None or tokens is None or uid not in batch.uids:
            raise LookupError(f"{decoding.sequence.request.request_id} is not decoding in the batch lane")
        index = batch.uids.index(uid)
        pending = cast(int, tokens[index].item()), batch._next_logprobs[index]
        caches, _ = self._generator.remove([uid], return_prompt_caches=True)[uid]
        decoding.caches = caches
        del self._rows[uid]
        return pending

    def remove(self, request_id: RequestId) -> None:
        """Drop a sequence and its caches; one that is not here has left already."""
        uid = self._uid(request_id)
        if uid is not None:
            self._generator.remove([uid])
            del self._rows[uid]

    def close(self) -> None:
        """Release the generator's wired-memory limit."""
        self._generator.close()

    def _note_calls(self, decoded: list[int], started: list[int], tokens: dict[int, int]) -> None:
        """Hand the features of the generator's calls to the histories they belong to.

        Its order within one step: a decode call for the rows that were decoding, a call with the last prompt
        token of the rows that start, and a right-padded call with the prompt ends of the rows that wait.
        """
        calls, self._model.calls = self._model.calls, []
        if decoded:
            features = calls.pop(0)
            for index, uid in enumerate(decoded):
                decoding = self._rows[uid]
                decoding.bonus = tokens[uid]
                _note(decoding, tokens[uid], features, index)
        if started:
            features = calls.pop(0)
            for index, uid in enumerate(started):
                _note(self._rows[uid], self._rows[uid].bonus, features, index)
        if calls:
            features = calls.pop(0)
            for index, uid in enumerate(self._generator._prompt_batch.uids):
                _prime(self._rows[uid], features, index)

    def _uid(self, request_id: RequestId) -> int | None:
        found = (uid for uid, d in self._rows.items() if d.sequence.request.request_id == request_id)
        return next(found, None)


def _note(decoding: Decoding, token_id: int, features: mx.array | None, index: int) -> None:
    if decoding.history is not None and features is not None:
        decoding.history.note(token_id, features[index : index + 1])


def _prime(decoding: Decoding, features: mx.array | None, index: int) -> None:
    unfed, decoding.unfed = decoding.unfed, ()
    if decoding.history is not None and features is not None and unfed:
        decoding.history.prime(unfed, features[index : index + 1, : len(unfed)])
