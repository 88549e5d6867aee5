"""Chat messages of a body as the plain role and text pairs a chat template takes; knows no tokenizer."""

from typing import Any

from serve_app.errors import ClientError
from serve_app.openai_schema import Message, shown

# Templates know "system" only; "developer" is OpenAI's later name for it.
_TEMPLATE_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
# Front ends send blank system prompts and an assistant may have said nothing; an empty question is a mistake.
_MAY_BE_EMPTY = frozenset({"system", "developer", "assistant"})
_ECHOED = ("tool_calls", "function_call", "audio", "annotations")


def template_messages(messages: list[Message]) -> list[dict[str, str]]:
    """Role, text and, where given, name and tool_call_id of every message. Text parts are joined as they are.

    Raises ClientError 400 for no messages, an unknown role, missing text and parts other than text.
    """
    if not messages:
        raise ClientError("messages must hold at least one message; got [].", param="messages")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: Message, where: str) -> dict[str, str]:
    role = _TEMPLATE_ROLES.get(message.role)
    if role is None:
        legal = ", ".join(_TEMPLATE_ROLES)
        raise ClientError(
            f"{where}.role must be one of {legal}; got {shown(message.role)}.", param=f"{where}.role"
        )
    for name in _ECHOED:
        if getattr(message, name):
            raise ClientError(
                f"{where}.{name} is not supported.", param=f"{where}.{name}", code="unsupported_value"
            )
    plain = {"role": role, "content": _text(message, f"{where}.content")}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _text(message: Message, where: str) -> str:
    content = message.content
    if content is None or content == []:
        raise ClientError(f"{where} must be text; got {shown(content)}.", param=where)
    text = content if isinstance(content, str) else _joined(content, where)
    if not text and message.role not in _MAY_BE_EMPTY:
        raise ClientError(f'{where} of a {message.role} message must not be empty; got "".', param=where)
    return text


def _joined(parts: list[dict[str, Any]], where: str) -> str:
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(parts))


def _part_text(part: dict[str, Any], where: str) -> str:
    if part.get("type") != "text":
        raise ClientError(
            f'{where}: a part of type {shown(part.get("type"))} is not supported, only "text".',
            param=f"{where}.type",
            code="unsupported_value",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise ClientError(f"{where}.text must be a string; got {shown(text)}.", param=f"{where}.text")
    return text
