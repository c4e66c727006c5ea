"""Fifty questions to assistants with tools, of `tools.json`: one entry for each assistant, with its tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("tools.json")


class Conversation(NamedTuple):
    """A question to an assistant that has tools; `tools` is the field of a chat."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]

    def parameters(self, name: str) -> dict[str, Any]:
        """Return the schema of a tool's arguments; KeyError if there is no such tool."""
        functions = {tool["function"]["name"]: tool["function"] for tool in self.tools}
        return dict(functions[name].get("parameters", {"type": "object", "properties": {}}))


def conversations() -> list[Conversation]:
    """Return all conversations, by assistant."""
    return [
        Conversation(
            [{"role": "system", "content": each["system"]}, {"role": "user", "content": question}],
            [{"type": "function", "function": function} for function in each["tools"]],
        )
        for each in json.loads(FILE.read_text(encoding="utf-8"))
        for question in each["questions"]
    ]
