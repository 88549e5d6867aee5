"""Chat messages before templating."""

from typing import Any

import msgspec
import pytest

from serve_app.chat_messages import template_messages
from serve_app.errors import ClientError
from serve_app.openai_schema import Message


def messages(*raw: dict[str, Any]) -> list[Message]:
    """Messages as they come out of a body."""
    return msgspec.convert(list(raw), list[Message])


def test_developer_is_system_to_a_template() -> None:
    """Templates predate the newer name; the other roles keep theirs."""
    roles = ["system", "developer", "user", "assistant", "tool"]
    plain = template_messages(messages(*({"role": role, "content": "x"} for role in roles)))
    assert [message["role"] for message in plain] == ["system", "system", "user", "assistant", "tool"]


def test_text_parts_are_joined_as_they_are() -> None:
    """Nothing is put between them."""
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert template_messages(messages({"role": "user", "content": parts}))[0]["content"] == "a b"


def test_names_reach_the_template() -> None:
    """Only where they were given."""
    plain = template_messages(
        messages(
            {"role": "user", "content": "x", "name": "ann"},
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
        )
    )
    assert plain == [
        {"role": "user", "content": "x", "name": "ann"},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_a_blank_system_or_assistant_message_is_fine(role: str) -> None:
    """Front ends send both."""
    assert template_messages(messages({"role": role, "content": ""}))[0]["content"] == ""


def test_an_assistant_message_may_be_echoed_back() -> None:
    """Clients return the object they received, empty extras included."""
    echoed = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "tool_calls": None,
        "function_call": None,
        "audio": None,
        "annotations": [],
    }
    assert template_messages(messages(echoed)) == [{"role": "assistant", "content": "hi"}]


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": ""}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "tool", "content": ""}, "messages[0].content"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text", "text": ""}]}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{}]}, "messages[0].content[0].type"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
    ],
)
def test_bad_messages_are_refused_where_they_are(raw: dict[str, Any], param: str) -> None:
    """The message says which one and what is wrong."""
    with pytest.raises(ClientError) as caught:
        template_messages(messages(raw))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_conversation_needs_a_message() -> None:
    """An empty list is not a question."""
    with pytest.raises(ClientError, match="at least one message"):
        template_messages([])
