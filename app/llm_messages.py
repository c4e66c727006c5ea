"""The messages that `LLM.chat` takes: what a template would leave out without a word is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.text.entry.chat_roles import MAY_BE_EMPTY, template_role

Message = Mapping[str, object]


def checked_messages(messages: Sequence[Message], template_source: str) -> list[dict[str, Any]]:
    """Return copies of a conversation's messages; a text among the parts of a content becomes a part. Any thread.

    Roles are those of OpenAI's API, and what else the template names, such as "ipython".

    Raises:
        InvalidValue: there are none, or a role, a content or a call has another form than in OpenAI's API.
        UnsupportedParameter: a part of a content is no text, or the role is that of a retired form of calls.
    """
    if not messages:
        raise InvalidValue("messages has a conversation without messages; it must have at least one.", param="messages")
    checked = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        own: dict[str, Any] = dict(message)
        role = own["role"] = _role(own.get("role"), f"{path}.role", template_source)
        content = own.get("content")
        if role not in MAY_BE_EMPTY and content in (None, [], ()):
            raise _wrong(f"{path}.content", content, "a text or a list of text parts")
        if isinstance(content, (list, tuple)):
            own["content"] = list(_parts(content, f"{path}.content"))
        elif content is not None and not isinstance(content, str):
            raise _wrong(f"{path}.content", content, "a text or a list of text parts")
        _check_calls(own.get("tool_calls"), f"{path}.tool_calls")
        checked.append(own)
    return checked


def _role(role: object, path: str, template_source: str) -> str:
    if not isinstance(role, str) or not role:  # templates have an empty text between quotes, too
        raise _wrong(path, role, 'a text such as "user"')
    is_named = f"'{role}'" in template_source or f'"{role}"' in template_source
    return role if is_named else template_role(role, path)


def _parts(content: Sequence[object], path: str) -> Iterator[object]:
    for index, part in enumerate(content):
        given = {"type": "text", "text": part} if isinstance(part, str) else part
        at = f"{path}[{index}]"
        if not isinstance(given, Mapping):
            raise _wrong(at, given, 'a text or {"type": "text", "text": ...}')
        kind = given.get("type", "text")
        if kind not in ("text", "refusal"):
            raise UnsupportedParameter(f"{at}.type is {str(kind)[:100]!r}; only text is supported.", param=f"{at}.type")
        if not isinstance(given.get(kind), str):
            raise _wrong(f"{at}.{kind}", given.get(kind), "a text")
        yield given


def _check_calls(calls: object, path: str) -> None:
    if calls is not None and not isinstance(calls, (list, tuple)):
        raise _wrong(path, calls, "a list of calls")
    for index, call in enumerate(calls or ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _wrong(f"{path}[{index}]", call, '{"type": "function", "function": {"name": ..., "arguments": ...}}')
        if not isinstance(arguments := function.get("arguments"), (str, Mapping, type(None))):
            raise _wrong(f"{path}[{index}].function.arguments", arguments, "JSON as a text, or a dict")


def _wrong(path: str, value: object, allowed: str) -> InvalidValue:
    return InvalidValue(f"{path} is {value!r:.80}; it must be {allowed}.", param=path)
