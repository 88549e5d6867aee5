"""Response bodies and stream chunks of both generating endpoints, byte for byte.

A wire object belongs to one request: what never changes in its chunks is encoded once. Knows no transport.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from messages.events import Finished, Timings, TokenLogprob, TokensEmitted, Usage
from serve_app.logprobs import chat_logprobs, completion_logprobs

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


class ReplyInfo(Struct, frozen=True, kw_only=True):
    """What every part of one reply repeats. `created` is in seconds since the epoch."""

    reply_id: str
    created: int
    model: str
    include_usage: bool = False
    top_logprobs: int | None = None


class Wire(Protocol):
    """The pieces of one reply. Stream pieces are complete server-sent events, possibly several."""

    def opening(self) -> bytes:
        """What precedes the first text."""
        ...

    def delta(self, event: TokensEmitted) -> bytes:
        """Text that became final."""
        ...

    def ending(self, event: Finished) -> bytes:
        """Finish reason, timings, usage if asked for, and the end marker."""
        ...

    def body(self, text: str, logprobs: Sequence[TokenLogprob], event: Finished) -> bytes:
        """The whole reply at once."""
        ...


class ChatWire:
    """`chat.completion` and `chat.completion.chunk`."""

    def __init__(self, info: ReplyInfo) -> None:
        self._info = info
        self._head = _head(info, "chat.completion.chunk")
        self._delta_head = self._head + b'[{"index":0,"delta":{"content":'
        self._usage_null = b',"usage":null' if info.include_usage else b""
        self._delta_tail = b',"finish_reason":null}]' + self._usage_null + b"}\n\n"
        self._plain_tail = b'},"logprobs":null' + self._delta_tail

    def opening(self) -> bytes:
        start = b'[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null'
        return self._head + start + self._delta_tail

    def delta(self, event: TokensEmitted) -> bytes:
        text = _encode(event.text)
        if self._info.top_logprobs is None:
            return self._delta_head + text + self._plain_tail
        logprobs = _encode(chat_logprobs(event.logprobs))
        return b"".join((self._delta_head, text, b'},"logprobs":', logprobs, self._delta_tail))

    def ending(self, event: Finished) -> bytes:
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": event.reason}
        return _ending(self._head, choice, self._usage_null, event, self._info.include_usage)

    def body(self, text: str, logprobs: Sequence[TokenLogprob], event: Finished) -> bytes:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None if self._info.top_logprobs is None else chat_logprobs(logprobs),
            "finish_reason": event.reason,
        }
        return _body(self._info, "chat.completion", choice, event)


class TextWire:
    """`text_completion`, whole and in chunks; counts characters for the offsets of log-probabilities."""

    def __init__(self, info: ReplyInfo) -> None:
        self._info = info
        self._num_chars = 0
        self._head = _head(info, "text_completion")
        self._delta_head = self._head + b'[{"index":0,"text":'
        self._usage_null = b',"usage":null' if info.include_usage else b""
        self._delta_tail = b',"finish_reason":null}]' + self._usage_null + b"}\n\n"
        self._plain_tail = b',"logprobs":null' + self._delta_tail

    def opening(self) -> bytes:
        return b""

    def delta(self, event: TokensEmitted) -> bytes:
        text = _encode(event.text)
        if self._info.top_logprobs is None:
            return self._delta_head + text + self._plain_tail
        logprobs = completion_logprobs(event.logprobs, self._info.top_logprobs, self._num_chars)
        self._num_chars += sum(len(token.text) for token in event.logprobs)
        return b"".join((self._delta_head, text, b',"logprobs":', _encode(logprobs), self._delta_tail))

    def ending(self, event: Finished) -> bytes:
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": event.reason}
        return _ending(self._head, choice, self._usage_null, event, self._info.include_usage)

    def body(self, text: str, logprobs: Sequence[TokenLogprob], event: Finished) -> bytes:
        num_top = self._info.top_logprobs
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None if num_top is None else completion_logprobs(logprobs, num_top, 0),
            "finish_reason": event.reason,
        }
        return _body(self._info, "text_completion", choice, event)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts in OpenAI's names."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def timings_object(timings: Timings) -> dict[str, Any]:
    """Wall times in llama-server's names; `draft_*` only when speculation ran."""
    shown: dict[str, Any] = {}
    for name, num_tokens, total_ms in (
        ("prompt", timings.prompt_n, timings.prompt_ms),
        ("predicted", timings.predicted_n, timings.predicted_ms),
    ):
        shown[f"{name}_n"] = num_tokens
        shown[f"{name}_ms"] = round(total_ms, 3)
        shown[f"{name}_per_token_ms"] = round(total_ms / num_tokens, 3) if num_tokens else 0.0
        shown[f"{name}_per_second"] = round(num_tokens * 1000 / total_ms, 3) if total_ms else 0.0
    if timings.draft is not None:
        drafted = msgspec.structs.asdict(timings.draft)
        shown.update({k: round(v, 3) if isinstance(v, float) else v for k, v in drafted.items()})
    return shown


def _head(info: ReplyInfo, kind: str) -> bytes:
    fields = {"id": info.reply_id, "object": kind, "created": info.created, "model": info.model}
    return b"data: " + _encode(fields)[:-1] + b',"choices":'


def _ending(
    head: bytes, choice: dict[str, Any], usage_null: bytes, event: Finished, include_usage: bool
) -> bytes:
    timings = _encode(timings_object(event.timings))
    finish = b"".join((head, b"[", _encode(choice), b"]", usage_null, b',"timings":', timings, b"}\n\n"))
    if not include_usage:
        return finish + DONE
    usage = _encode(usage_object(event.usage))
    return b"".join((finish, head, b'[],"usage":', usage, b"}\n\n", DONE))


def _body(info: ReplyInfo, kind: str, choice: dict[str, Any], event: Finished) -> bytes:
    return _encode(
        {
            "id": info.reply_id,
            "object": kind,
            "created": info.created,
            "model": info.model,
            "choices": [choice],
            "usage": usage_object(event.usage),
            "timings": timings_object(event.timings),
        }
    )
