"""Request bodies: types, unknown fields and fields that are only accepted when they ask for nothing."""

import json
from typing import Any

import pytest

from serve_app.errors import ClientError
from serve_app.openai_schema import parse_chat, parse_completion, shown

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def refused(body: dict[str, Any] | bytes, *, completion: bool = False) -> ClientError:
    """The error a body gets."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ClientError) as caught:
        parse_completion(raw) if completion else parse_chat(raw)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"functions": [], "function_call": "none"},
        {"response_format": {"type": "text"}, "modalities": ["text"], "n": 1},
        {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"prompt_cache_key": "k", "safety_identifier": "s", "reasoning_effort": "none"},
        {"tools": None, "n": None, "temperature": None, "stop": None, "stream": None, "audio": None},
        {"temperature": 1, "top_p": 1, "stream": True, "stream_options": {"include_usage": True}},
    ],
)
def test_fields_that_change_nothing_are_accepted(fields: dict[str, Any]) -> None:
    """Clients send them by default; refusing them would help nobody."""
    assert parse_chat(json.dumps({**CHAT, **fields}).encode()).messages[0].content == "hi"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("n", 2),
        ("n", True),
        ("n", 1.0),
        ("n", 10**30),
        ("reasoning_effort", "high"),
    ],
)
def test_unsupported_features_are_refused_by_name(name: str, value: Any) -> None:
    """Ignoring them would change what the client gets without telling it."""
    error = refused({**CHAT, name: value})
    assert (error.param, error.code) == (name, "unsupported_value")
    assert error.message.startswith(f"{name} {json.dumps(value)[:20]}")


@pytest.mark.parametrize(("name", "value"), [("echo", True), ("suffix", "x"), ("best_of", 2), ("n", 0)])
def test_unsupported_completion_features_are_refused(name: str, value: Any) -> None:
    """The older endpoint has its own list."""
    assert refused({"prompt": "a", name: value}, completion=True).param == name


def test_neutral_completion_fields_are_accepted() -> None:
    """Their defaults ask for nothing."""
    body = {"prompt": "a", "echo": False, "suffix": None, "best_of": 1, "n": 1}
    assert parse_completion(json.dumps(body).encode()).prompt == "a"


@pytest.mark.parametrize("name", ["temprature", "beam_width", "prompt"])
def test_unknown_fields_are_refused_by_name(name: str) -> None:
    """A misspelt option does not silently fall back to its default."""
    error = refused({**CHAT, name: 1})
    assert (error.param, error.code) == (name, "unknown_field")
    assert name in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"seed": "7"}, "seed"),
        ({"stream": 1}, "stream"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"logprobs": 5}, "logprobs"),
        ({"user": 5}, "user"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": 5}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ],
)
def test_wrong_types_are_named_with_path_and_value(fields: dict[str, Any], param: str) -> None:
    """A bool is not a number and a string is not a list."""
    error = refused({**CHAT, **fields})
    assert (error.param, error.code) == (param, "invalid_type")
    assert "the value is" in error.message


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "messages"),
        ({"messages": [{"content": "x"}]}, "role"),
        ({**CHAT, "logit_bias": {"5": "much"}}, "logit_bias"),
        ({**CHAT, "stream_options": {"chunk_size": 5}}, "chunk_size"),
        ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "mood"),
    ],
)
def test_missing_and_nested_unknown_fields_are_named(body: dict[str, Any], word: str) -> None:
    """Also inside messages and options."""
    assert word in refused(body).message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"messages": [}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"temperature": ' + b"9" * 400 + b"}",
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    ],
)
def test_malformed_json_is_a_client_error(raw: bytes) -> None:
    """Including numbers JSON has no place for, deep nesting and half a surrogate pair."""
    refused(raw)


def test_shown_values_are_short() -> None:
    """An error message does not send a whole prompt back."""
    assert len(shown("x" * 10_000)) < 80
    assert len(shown(list(range(10_000)))) < 80
    assert shown(10**30) == "1" + "0" * 30
