"""Shapes of the OpenAI request bodies: which fields exist, their types, and values refused outright.

Types only; ranges belong to `translate`. Knows neither the model nor the tokenizer.
"""

import json
import re
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from serve_app.errors import ClientError


class StreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`include_obfuscation` asks for random padding; there is none here, so either value is fine."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One chat message. Clients echo back the fields below `tool_call_id`; only empty values are accepted."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None


class CommonBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields both generating endpoints share; None means "not given". The last six change no output."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    speculative: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


class ChatBody(CommonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(CommonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions; `prompt` is text, one text in a list, or token ids."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None


# Fields that are legal only where they ask for nothing; null is always such a value.
_NEUTRAL_COMMON: dict[str, tuple[Any, ...]] = {"n": (1,)}
_NEUTRAL_CHAT: dict[str, tuple[Any, ...]] = {
    **_NEUTRAL_COMMON,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "web_search_options": (),
}
_NEUTRAL_COMPLETION: dict[str, tuple[Any, ...]] = {
    **_NEUTRAL_COMMON,
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
}

_Body = TypeVar("_Body", ChatBody, CompletionBody)
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_SHOWN_CHARS = 60


def parse_chat(body: bytes) -> ChatBody:
    """Raises ClientError 400 for malformed JSON, unknown or unsupported fields and wrong types."""
    return _convert(_decode(body), ChatBody, _NEUTRAL_CHAT)


def parse_completion(body: bytes) -> CompletionBody:
    """Raises ClientError 400 for malformed JSON, unknown or unsupported fields and wrong types."""
    return _convert(_decode(body), CompletionBody, _NEUTRAL_COMPLETION)


def shown(value: object) -> str:
    """A value as JSON for an error message, cut short."""
    # The standard encoder, since msgspec refuses integers beyond 64 bits; cut before encoding a huge value.
    short = value[: _SHOWN_CHARS + 1] if isinstance(value, str | list) else value
    text = json.dumps(short, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _decode(body: bytes) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(body)
    except msgspec.MsgspecError as error:
        raise ClientError(f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ClientError("The body is nested too deeply.", code="invalid_json") from None
    if not isinstance(raw, dict):
        raise ClientError(f"The body must be a JSON object; got {shown(raw)}.", code="invalid_json")
    return raw


def _convert(raw: dict[str, Any], body_type: type[_Body], neutral: dict[str, tuple[Any, ...]]) -> _Body:
    kept: dict[str, Any] = {}
    for name, value in raw.items():
        if name in neutral:
            _refuse_unless_neutral(name, value, neutral[name])
        elif name in body_type.__struct_fields__:
            kept[name] = value
        else:
            raise ClientError(f"Unknown field {shown(name)}.", param=name, code="unknown_field")
    try:
        return msgspec.convert(kept, body_type)
    except msgspec.ValidationError as error:
        raise _wrong_type(kept, str(error)) from None


def _refuse_unless_neutral(name: str, value: Any, legal: tuple[Any, ...]) -> None:
    # True == 1 in Python, hence the comparison of types.
    if value is None or any(type(value) is type(one) and value == one for one in legal):
        return
    expected = " or ".join(["null", *map(shown, legal)])
    raise ClientError(
        f"{name} {shown(value)} is not supported; it must be absent or {expected}.",
        param=name,
        code="unsupported_value",
    )


def _wrong_type(raw: dict[str, Any], text: str) -> ClientError:
    match = _PATH.search(text)
    if match is None:
        return ClientError(f"{text}.", code="invalid_type")
    path = match.group(1)
    found, value = _value_at(raw, path)
    got = f"; the value is {shown(value)}" if found else ""
    return ClientError(f"{path}: {text[: match.start()]}{got}.", param=path, code="invalid_type")


def _value_at(raw: Any, path: str) -> tuple[bool, Any]:
    for name, index in _STEP.findall(path):
        if index and isinstance(raw, list):
            raw = raw[int(index)]
        elif isinstance(raw, dict) and name in raw:
            raw = raw[name]
        else:
            return False, None
    return True, raw
