"""The form in which one chat template takes messages with calls and their results, and definitions of tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.text.answer.choose import choose_format, is_generic, mentions_tools
from app.text.calls.tools import (
    Messages,
    in_plain_messages,
    with_arguments_as_objects,
    with_arguments_as_text,
    with_call_messages,
    with_definitions,
    with_named_ids,
    with_short_ids,
)

# What templates expect of calls: no content is None, not an empty text; arguments are JSON, not an object.
_ASKS_FOR_NONE = re.compile(r"""== 'assistant' and message\['content'\] is none""")
_ADDS_ARGUMENTS = re.compile(r"""\+ ?tool\['function'\]\['arguments'\] ?\+""")


class MessageForm:
    """The form of messages that a template with the source `source` expects. Any thread."""

    def __init__(self, source: str) -> None:
        self._is_generic = is_generic(source)
        self._knows_tools = mentions_tools(source)
        self._takes_objects = not _ADDS_ARGUMENTS.search(source)
        self._no_content = None if _ASKS_FOR_NONE.search(source) else ""
        row = choose_format(source)
        self._id_chars = None if row is None else row.syntax.id_chars
        self._has_named_ids = row is not None and row.syntax.has_named_ids
        self._has_call_messages = row is not None and row.syntax.has_call_messages

    def formed(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Messages, list[Mapping[str, Any]] | None]:
        """Return messages and tools as the template takes them; arguments of calls may be objects or text."""
        if tools or any("tool_calls" in message or message.get("role") == "tool" for message in messages):
            if self._is_generic:
                return in_plain_messages(messages, tools), None
            if self._has_call_messages:
                messages = with_call_messages(messages)
            messages = [self._with_calls(message) for message in messages]
            if self._id_chars is not None:
                messages = with_short_ids(messages, self._id_chars)
            if self._has_named_ids:
                messages = with_named_ids(messages)
            if not self._knows_tools:
                return with_definitions(messages, tools), None
        return messages, list(tools) or None

    def _with_calls(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message whose calls, and no content beside them, are what the template expects."""
        calls = message.get("tool_calls")
        if not calls:
            return message
        calls = with_arguments_as_objects(calls) if self._takes_objects else with_arguments_as_text(calls)
        return {**message, "tool_calls": calls, "content": message.get("content") or self._no_content}
