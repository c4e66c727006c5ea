"""Blocks that only Anthropic's own servers make and read, in the messages of a body: they say nothing to a model here.

Nearly all are calls of tools that it runs itself, and their results.
"""

from __future__ import annotations

_KINDS = ("server_tool_use", "mcp_tool_use", "mcp_tool_listing", "container_upload", "compaction", "fallback")
_RESULT, _OWN_RESULT = "_tool_result", "tool_result"
_NOTHING = {"type": "redacted_thinking"}
"""A block that says nothing, in place of one that is left out: so the others keep their numbers in errors."""


def leave_out_hosted(fields: dict[str, object]) -> tuple[str, ...]:
    """Replace the hosted blocks in the messages of a parsed body, and return their paths. Any thread."""
    messages = fields.get("messages")
    left_out: list[str] = []
    for index, message in enumerate(messages) if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            continue
        for number, block in enumerate(content):
            if isinstance(block, dict) and _is_hosted(block.get("type")):
                content[number] = _NOTHING
                left_out.append(f"messages[{index}].content[{number}]")
    return tuple(left_out)


def _is_hosted(kind: object) -> bool:
    if not isinstance(kind, str):
        return False
    return kind in _KINDS or (kind.endswith(_RESULT) and kind != _OWN_RESULT)
