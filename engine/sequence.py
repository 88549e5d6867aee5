"""One request in flight: what it has emitted and whether it is finished, judged token by token.

Every lane feeds tokens through here, so EOS, stop strings, length and log-probabilities cannot differ
between lanes. Knows nothing about caches or batches.
"""

import time
from collections.abc import Sequence as Seq

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from engine.course import PLAIN, Course
from engine.text import TextStream, token_text
from messages.events import (
    DraftTimings,
    Event,
    Finished,
    FinishReason,
    Timings,
    TokenLogprob,
    TokensEmitted,
    TopLogprob,
    Usage,
)
from messages.requests import GenerateRequest


class Sequence:
    """A request being generated; `finish_reason` is None until a token ended it."""

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer, eos_token_ids: Seq[int]) -> None:
        """Times count from construction, which is when the engine took the request."""
        self.request = request
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.cached_tokens = 0
        self.course: Course = PLAIN
        self.draft: DraftTimings | None = None
        self._tokenizer = tokenizer
        self._eos = frozenset(() if request.ignore_eos else eos_token_ids)
        self._text = TextStream(tokenizer, request.stop)
        self._submitted = time.monotonic()
        self._first_token: float | None = None

    @property
    def remaining_tokens(self) -> int:
        """How many more tokens this request may emit."""
        return self.request.max_tokens - len(self.token_ids)

    def emit(self, token_ids: Seq[int], logprobs: mx.array) -> TokensEmitted | None:
        """Take the tokens of one step or round in order, up to the one that ends the sequence.

        `logprobs` [tokens, vocabulary], natural log, is read only when the request asked for
        log-probabilities. Returns the event to send, None when nothing became visible.
        """
        pieces: list[str] = []
        kept: list[int] = []
        details: list[TokenLogprob] = []
        for index, token_id in enumerate(token_ids):
            if self.finish_reason is not None:
                break
            pieces.append(self._take(token_id))
            if token_id in self._eos:
                break
            kept.append(token_id)
            if self.request.top_logprobs is not None:
                details.append(self._detail(token_id, logprobs[index]))
        text = "".join(pieces)
        if not text and not kept:
            return None
        return TokensEmitted(
            request_id=self.request.request_id, text=text, token_ids=tuple(kept), logprobs=tuple(details)
        )

    def finished(self) -> Finished:
        """The closing event; call once `finish_reason` is set."""
        if self.finish_reason is None:
            raise RuntimeError(f"request {self.request.request_id} is not finished")
        now = time.monotonic()
        first = self._first_token or now
        return Finished(
            request_id=self.request.request_id,
            reason=self.finish_reason,
            usage=Usage(
                prompt_tokens=len(self.request.prompt),
                completion_tokens=len(self.token_ids),
                cached_tokens=self.cached_tokens,
            ),
            timings=Timings(
                prompt_n=len(self.request.prompt) - self.cached_tokens,
                prompt_ms=(first - self._submitted) * 1e3,
                predicted_n=len(self.token_ids),
                predicted_ms=(now - first) * 1e3,
                draft=self.draft,
            ),
        )

    def closing_events(self, emitted: TokensEmitted | None) -> list[Event]:
        """What to send after a step: the emitted text, and the closing event when the sequence ended."""
        events: list[Event] = [] if emitted is None else [emitted]
        if self.finish_reason is not None:
            events.append(self.finished())
        return events

    def _take(self, token_id: int) -> str:
        self._first_token = self._first_token or time.monotonic()
        self.token_ids.append(token_id)
        if token_id in self._eos:
            self.finish_reason = "stop"
            return self._text.flush()[0]
        text, stopped = self._text.push(token_id)
        if not stopped and self.remaining_tokens <= 0:
            self.finish_reason = "length"
            tail, stopped = self._text.flush()
            text += tail
        if stopped:
            self.finish_reason = "stop"
        return text

    def _detail(self, token_id: int, row: mx.array) -> TokenLogprob:
        values = np.array(row.astype(mx.float32))
        count = min(self.request.top_logprobs or 0, values.size)
        best = np.argpartition(-values, count - 1)[:count] if count else np.array([], dtype=int)
        best = best[np.lexsort((best, -values[best]))]
        text, raw = token_text(self._tokenizer, token_id)
        return TokenLogprob(
            token_id=token_id,
            text=text,
            raw=raw,
            logprob=float(values[token_id]),
            top=tuple(self._alternative(int(i), float(values[i])) for i in best),
        )

    def _alternative(self, token_id: int, logprob: float) -> TopLogprob:
        text, raw = token_text(self._tokenizer, token_id)
        return TopLogprob(token_id=token_id, text=text, raw=raw, logprob=logprob)
