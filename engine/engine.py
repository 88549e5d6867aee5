"""The engine: five verbs (submit, abort, step, warmup, close) around one loaded model.

Runs on exactly one thread, the one that loaded the model. Knows neither actors nor HTTP; what happened is
told as events.
"""

import time
from collections import deque
from collections.abc import Callable

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engine.batch_lane import BatchLane
from engine.config import EngineConfig
from engine.loading import LoadedModel
from engine.prompt_cache import PromptCache
from engine.sequence import Sequence
from messages.events import Cancelled, Event, Failed
from messages.requests import GenerateRequest, RequestId

_WARMUP_TOKENS = 64
_MIN_CHUNK, _MAX_CHUNK = 16, 2048


class Engine:
    """Generates for up to `num_slots` requests at once."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        """The engine cannot step before `warmup` has sized its prefill chunk."""
        self._loaded = loaded
        self._config = config
        self._sequences: dict[RequestId, Sequence] = {}
        self._arrived: deque[Sequence] = deque()
        self._lane: BatchLane | None = None
        self._prompt_cache: PromptCache | None = None
        self.prefill_chunk = 0

    @property
    def active(self) -> tuple[RequestId, ...]:
        """Requests being worked on, queued ones included."""
        return tuple(self._sequences)

    def warmup(self, progress: Callable[[str], None]) -> None:
        """Run the model once to compile kernels, and fix the prefill chunk for the engine's life."""
        progress("warming up")
        self._forward(8)
        started = time.perf_counter()
        self._forward(_WARMUP_TOKENS)
        seconds = time.perf_counter() - started
        self.prefill_chunk = prefill_chunk(_WARMUP_TOKENS / seconds, self._config.prefill_chunk_s)
        self._prompt_cache = PromptCache(self._config.prompt_cache_bytes, self.prefill_chunk)
        self._lane = self._new_lane()

    def submit(self, request: GenerateRequest) -> None:
        """Accept a request; its events come out of later steps."""
        card = self._loaded.card
        sequence = Sequence(request, self._loaded.tokenizer, card.eos_token_ids)
        self._sequences[request.request_id] = sequence
        self._arrived.append(sequence)

    def abort(self, request_id: RequestId) -> list[Event]:
        """Drop a request between steps; unknown ids give no event."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return []
        if sequence in self._arrived:
            self._arrived.remove(sequence)
        self._ready_lane().remove(request_id)
        return [Cancelled(request_id=request_id)]

    def step(self) -> list[Event]:
        """Advance every active request; returns what happened, in order."""
        lane = self._ready_lane()
        while self._arrived:
            self._admit(self._arrived.popleft())
        events: list[Event] = []
        for row in lane.step():
            emitted = row.sequence.emit([row.token_id], [row.logprobs])
            events += row.sequence.closing_events(emitted)
            if row.sequence.finish_reason is not None:
                self._retire(row.sequence)
        return events

    def fail_all(self, message: str) -> list[Event]:
        """End every request with an error and start from an empty lane, after a step raised."""
        events: list[Event] = [
            Failed(request_id=request_id, kind="internal", message=message) for request_id in self._sequences
        ]
        self._sequences.clear()
        self._arrived.clear()
        self._ready_lane().close()
        self._lane = self._new_lane()
        return events

    def close(self) -> None:
        """Give back what the engine holds outside Python's memory."""
        if self._lane is not None:
            self._lane.close()

    def _admit(self, sequence: Sequence) -> None:
        state = self._ready_prompt_cache().fetch(sequence.request.prompt)
        sequence.cached_tokens = len(state.token_ids) if state else 0
        self._ready_lane().insert(sequence, state)

    def _retire(self, sequence: Sequence) -> None:
        request = sequence.request
        del self._sequences[request.request_id]
        cache = self._ready_prompt_cache()
        state = self._ready_lane().remove(request.request_id, keep_state=cache.wants(request.prompt))
        if state is not None:
            cache.store(request.prompt, state)

    def _forward(self, num_tokens: int) -> None:
        tokens = mx.arange(num_tokens)[None] % self._loaded.card.vocab_size
        mx.eval(self._loaded.model(tokens, cache=make_prompt_cache(self._loaded.model)))

    def _new_lane(self) -> BatchLane:
        return BatchLane(
            self._loaded.model, self._config.num_slots, self.prefill_chunk, self._loaded.card.context_length
        )

    def _ready_lane(self) -> BatchLane:
        if self._lane is None:
            raise RuntimeError("the engine has not been warmed up")
        return self._lane

    def _ready_prompt_cache(self) -> PromptCache:
        if self._prompt_cache is None:
            raise RuntimeError("the engine has not been warmed up")
        return self._prompt_cache


def prefill_chunk(tokens_per_second: float, seconds: float) -> int:
    """Largest power of two of prompt tokens, within 16 to 2048, that takes at most about `seconds`."""
    chunk = _MIN_CHUNK
    while chunk * 2 <= _MAX_CHUNK and chunk * 2 <= tokens_per_second * seconds:
        chunk *= 2
    return chunk
