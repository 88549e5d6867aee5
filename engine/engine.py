"""The engine: five verbs (submit, abort, step, warmup, close) around one loaded model.

Runs on exactly one thread, the one that loaded the model. Knows neither actors nor HTTP; what happened is
told as events. One tick is one chunk of prefill and one step of whichever lane is in use.
"""

import time
from collections import deque
from collections.abc import Callable

import mlx.core as mx

from engine.batch_lane import BatchLane
from engine.config import EngineConfig
from engine.course import PLAIN
from engine.decoding import Decoding
from engine.forwarder import Forwarder, PlainForwarder, TappedForwarder
from engine.loading import LoadedModel
from engine.prefill import Prefill
from engine.prompt_cache import PromptCache
from engine.sequence import Sequence
from engine.solo_lane import SoloLane
from engine.speculator import Speculator
from messages.events import Cancelled, Event, Failed, TokensEmitted
from messages.policy import Counts, Sample
from messages.requests import GenerateRequest, RequestId
from speculative.target import Target

_WARMUP_TOKENS = 64
# The best of several, so that a busy moment at start does not shrink the chunk for good.
_WARMUP_RUNS = 3
_MIN_CHUNK, _MAX_CHUNK = 32, 2048


class Engine:
    """Generates for up to `num_slots` requests at once; `samples` gathers what the policy should hear."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        target: Target | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        """`target` and `speculator` come together, with a drafter. `warmup` comes before `step`."""
        self._loaded = loaded
        self._config = config
        self._target = target
        self._speculator = speculator
        self._forwarder: Forwarder = TappedForwarder(target) if target else PlainForwarder(loaded.model)
        self._sequences: dict[RequestId, Sequence] = {}
        self._arrived: deque[Sequence] = deque()
        self._prefill: Prefill | None = None
        self._decodings: dict[RequestId, Decoding] = {}
        self.samples: list[Sample] = []
        self.prefill_chunk = _MIN_CHUNK
        self._prompt_cache = PromptCache(0, _MIN_CHUNK)
        self._solo, self._batch = self._new_lanes()

    @property
    def active(self) -> tuple[RequestId, ...]:
        """Requests being worked on, queued ones included."""
        return tuple(self._sequences)

    @property
    def counts(self) -> Counts | None:
        """What happened to attempts to speculate, None without a drafter."""
        return self._speculator.counts if self._speculator else None

    def warmup(self, progress: Callable[[str], None]) -> None:
        """Run the model once to compile kernels, and fix the prefill chunk for the engine's life."""
        progress("warming up")
        self._forward(8)
        seconds = min(self._timed_forward(_WARMUP_TOKENS) for _ in range(_WARMUP_RUNS))
        self.prefill_chunk = prefill_chunk(_WARMUP_TOKENS / seconds, self._config.prefill_chunk_s)
        self._prompt_cache = PromptCache(self._config.prompt_cache_bytes, self.prefill_chunk)
        self._batch.close()
        self._solo, self._batch = self._new_lanes()

    def submit(self, request: GenerateRequest) -> None:
        """Accept a request; its events come out of later steps."""
        sequence = Sequence(request, self._loaded.tokenizer, self._loaded.card.eos_token_ids)
        self._sequences[request.request_id] = sequence
        self._arrived.append(sequence)

    def abort(self, request_id: RequestId) -> list[Event]:
        """Drop a request between steps; unknown ids give no event."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return []
        if sequence in self._arrived:
            self._arrived.remove(sequence)
        if self._prefill is not None and self._prefill.sequence is sequence:
            self._prefill = None
        self._drop(sequence, cancelled=True)
        return [Cancelled(request_id=request_id)]

    def step(self) -> list[Event]:
        """Advance every active request; returns what happened, in order."""
        events = self._step_lane()
        events += self._step_prefill()
        return events

    def fail_all(self, message: str) -> list[Event]:
        """End every request with an error and start from empty lanes, after a step raised."""
        events: list[Event] = [
            Failed(request_id=request_id, kind="internal", message=message) for request_id in self._sequences
        ]
        self._sequences.clear()
        self._arrived.clear()
        self._decodings.clear()
        self._prefill = None
        self._batch.close()
        self._solo, self._batch = self._new_lanes()
        return events

    def close(self) -> None:
        """Give back what the engine holds outside Python's memory."""
        self._batch.close()

    def _step_prefill(self) -> list[Event]:
        """One chunk of the oldest waiting prompt; finished prompts move to a lane.

        Prompts that wait together leave their ends to the batch lane, which runs those in one forward.
        """
        events: list[Event] = []
        while self._prefill or (self._arrived and len(self._decodings) < self._config.num_slots):
            prefill = self._prefill = self._prefill or self._begin(self._arrived.popleft())
            prefill.leaves_end = bool(self._arrived or len(self._batch))
            has_worked = not prefill.is_done
            prefill.step()
            if prefill.snapshot is not None:
                self._prompt_cache.store(prefill.sequence.request.prompt, prefill.snapshot)
            if prefill.is_done:
                self._prefill = None
                events += self._begin_decoding(prefill)
            if has_worked:
                break
        return events

    def _begin(self, sequence: Sequence) -> Prefill:
        speculator, request = self._speculator, sequence.request
        course = speculator.plan(request) if speculator else PLAIN
        start = self._prompt_cache.fetch(request.prompt, with_history=course.speculates)
        history = speculator.history(course, start) if speculator else None
        sequence.course = course
        return Prefill(sequence, self._forwarder, self.prefill_chunk, start, history)

    def _begin_decoding(self, prefill: Prefill) -> list[Event]:
        sequence = prefill.sequence
        decoding = Decoding(sequence, prefill.caches, prefill.history)
        decoding.course = sequence.course
        decoding.unfed = prefill.unfed
        if self._speculator is not None:
            decoding.measurement = self._speculator.measurement(sequence.course)
            decoding.copying = self._speculator.copying(sequence.course, sequence.request.prompt)
        self._decodings[sequence.request.request_id] = decoding
        if len(self._decodings) == 1 and not decoding.unfed:
            self._solo.enter(decoding)
            return []
        events = self._solo_to_batch()
        self._batch.insert(decoding)
        return events

    def _step_lane(self) -> list[Event]:
        if (decoding := self._solo.decoding) is not None:
            return self._step_solo(decoding)
        if not len(self._batch):
            return []
        events = []
        for row in self._batch.step():
            events += self._emitted(
                row.decoding, row.decoding.sequence.emit([row.token_id], row.logprobs[None])
            )
        return events + self._batch_to_solo()

    def _step_solo(self, decoding: Decoding) -> list[Event]:
        sequence, speculator = decoding.sequence, self._speculator
        before = sequence.draft
        event = self._solo.step()
        # Counted before a request that ends with its first round is told of.
        if speculator and before is None and sequence.draft is not None and sequence.course.is_attempt:
            speculator.note_burst()
        return self._emitted(decoding, event)

    def _solo_to_batch(self) -> list[Event]:
        """Move the solo sequence over, once its step under way is finished."""
        decoding = self._solo.decoding
        if decoding is None:
            return []
        events = self._emitted(decoding, self._solo.settle())
        # The settled token may have been its last.
        if self._solo.decoding is not None:
            self._batch.insert(self._solo.leave())
        return events

    def _batch_to_solo(self) -> list[Event]:
        """When one sequence is left in the batch and none is about to join it, it goes on alone."""
        decoding = self._batch.sole()
        if decoding is None or self._prefill is not None or self._arrived:
            return []
        token_id, logprobs = self._batch.leave(decoding)
        self._solo.enter(decoding)
        decoding.bonus = token_id
        return self._emitted(decoding, decoding.sequence.emit([token_id], logprobs[None]))

    def _emitted(self, decoding: Decoding, event: TokensEmitted | None) -> list[Event]:
        sequence = decoding.sequence
        events = sequence.closing_events(event)
        if sequence.finish_reason is not None:
            self._drop(sequence, cancelled=False)
        return events

    def _drop(self, sequence: Sequence, cancelled: bool) -> None:
        """Forget a sequence wherever it is, and keep what was measured."""
        request_id = sequence.request.request_id
        del self._sequences[request_id]
        decoding = self._decodings.pop(request_id, None)
        if decoding is None:
            return
        if self._solo.decoding is decoding:
            self._solo.leave()
        self._batch.remove(request_id)
        self._report(decoding, cancelled)

    def _report(self, decoding: Decoding, cancelled: bool) -> None:
        speculator, sequence = self._speculator, decoding.sequence
        if speculator is None:
            return
        if sequence.course.is_attempt and sequence.draft is None:
            speculator.note_decline(decoding.why_no_round)
        if decoding.measurement is not None:
            sample = speculator.sample(sequence, decoding.measurement, cancelled)
            if sample is not None:
                self.samples.append(sample)

    def _forward(self, num_tokens: int) -> None:
        tokens = mx.arange(num_tokens)[None] % self._loaded.card.vocab_size
        mx.eval(self._forwarder(tokens, self._forwarder.make_cache()).logits)

    def _timed_forward(self, num_tokens: int) -> float:
        started = time.perf_counter()
        self._forward(num_tokens)
        return time.perf_counter() - started

    def _new_lanes(self) -> tuple[SoloLane, BatchLane]:
        context_length = self._loaded.card.context_length
        return (
            SoloLane(self._forwarder, self._target, self._speculator, context_length),
            BatchLane(self._forwarder, self._config.num_slots, context_length, self.prefill_chunk),
        )


def prefill_chunk(tokens_per_second: float, seconds: float) -> int:
    """Largest power of two of prompt tokens, within 32 to 2048, that takes at most about `seconds`."""
    chunk = _MIN_CHUNK
    while chunk * 2 <= _MAX_CHUNK and chunk * 2 <= tokens_per_second * seconds:
        chunk *= 2
    return chunk
