"""The fields of chat messages that belong to tools and reasoning, as clients send them and as templates get them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from app.contract.errors import InvalidValue, UnsupportedParameter

MAX_ID_CHARS = 256


class FunctionCall(msgspec.Struct, kw_only=True):
    """The function of a call; `arguments` is the JSON of an object, the object, or what a cut call has of it."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, kw_only=True):
    """A call in a message of the assistant."""

    function: FunctionCall
    id: str | None = None
    type: str | None = "function"
    index: int | None = None  # some clients send back what they have accumulated from a stream


class MessageFields(Protocol):
    """The fields of a message that are read here."""

    role: str
    name: str | None
    tool_calls: list[ToolCall] | None
    tool_call_id: str | None
    reasoning_content: str | None
    reasoning: str | None


def tool_fields(index: int, message: MessageFields) -> dict[str, object]:
    """Return a message's calls and reasoning, or the call whose result it is, as `ChatTemplate.render` gets them.

    Reasoning has all names that templates have for it.

    Raises:
        InvalidValue, UnsupportedParameter: the path names the field.
    """
    path = f"messages[{index}]"
    fields: dict[str, object] = {}
    if message.role == "assistant":
        text = message.reasoning_content or message.reasoning
        fields |= {"reasoning_content": text, "thinking": text} if text else {}
        if message.tool_calls:
            fields["tool_calls"] = _calls(f"{path}.tool_calls", message.tool_calls)
    elif message.tool_calls:
        raise InvalidValue(f"{path}.tool_calls needs the role 'assistant'.", param=f"{path}.tool_calls")
    if message.role == "tool":
        fields |= {} if message.name is None else {"name": message.name}
        if message.tool_call_id is not None:
            _check_id(f"{path}.tool_call_id", message.tool_call_id)
            fields["tool_call_id"] = message.tool_call_id
    return fields


def _calls(path: str, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [_call(f"{path}[{index}]", call) for index, call in enumerate(calls)]


def _call(path: str, call: ToolCall) -> dict[str, Any]:
    if call.type not in ("function", None):
        raise UnsupportedParameter(
            f"{path}.type is {call.type[:100]!r}; only 'function' is supported.", param=f"{path}.type"
        )
    _check_id(f"{path}.id", call.id or "")
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id or "", "type": "function", "function": function}


def _check_id(path: str, call_id: str) -> None:
    if len(call_id) > MAX_ID_CHARS:
        raise InvalidValue(f"{path} has {len(call_id)} characters; at most {MAX_ID_CHARS} are allowed.", param=path)
