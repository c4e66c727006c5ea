"""The roles of a chat's messages, as chats over the wire and those of `LLM.chat` have them."""

from __future__ import annotations

from app.contract.errors import InvalidValue, UnsupportedParameter

# `developer` is OpenAI's newer word for `system`; templates have the older one.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_UNSUPPORTED = ("function",)
# Clients send null or a list of no parts beside calls, for an answer of reasoning alone, and for a call without result.
MAY_BE_EMPTY = ("assistant", "tool")


def template_role(role: str, path: str) -> str:
    """Return the word that templates have for a message's role; `path` is where it is given. Any thread.

    Raises:
        InvalidValue: there is no such role.
        UnsupportedParameter: it is that of a retired form of calls.
    """
    if role in _UNSUPPORTED:
        raise UnsupportedParameter(f"{path} is {role!r}; send the result of a call with role 'tool'.", param=path)
    if role not in _ROLES:
        raise InvalidValue(f"{path} is {role[:100]!r}; it must be one of {', '.join(_ROLES)}.", param=path)
    return _ROLES[role]
