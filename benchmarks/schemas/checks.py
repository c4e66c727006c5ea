"""What is wrong with answers: JSON that does not satisfy its schema, calls that do not, and marks in texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import jsonschema

from benchmarks.schemas.chats import Answer
from benchmarks.schemas.conversations import Conversation

# Texts of special tokens, the private mark before shown ones, and calls that were not taken out of the text.
_MARKS = re.compile(r"<\|[a-z_]+\|>|\ufdd0|<tool_call>\s*\{.*\}\s*</tool_call>", re.DOTALL)


def fault_of_json(text: str, schema: Mapping[str, Any]) -> str | None:
    """Return why a text does not satisfy a schema, in one line; None if it does."""
    # Unions are read as anyOf, as documented. Decimal numbers make multipleOf exact.
    exact = json.loads(json.dumps(schema).replace('"oneOf"', '"anyOf"'), parse_float=Decimal)
    validator = jsonschema.Draft202012Validator(exact, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    try:
        value = json.loads(text, parse_float=Decimal)
    except ValueError as error:
        return f"not JSON: {error}"
    worst = jsonschema.exceptions.best_match(validator.iter_errors(value))
    return None if worst is None else str(worst.message)[:200]


def faults_of_calls(conversation: Conversation, answer: Answer) -> list[str]:
    """Return why calls do not satisfy the parameters of their tools."""
    names = {tool["function"]["name"] for tool in conversation.tools}
    faults = []
    for call in answer.calls:
        if call.name not in names:
            faults.append(f"{call.name} is no tool")
        elif fault := fault_of_json(call.arguments, conversation.parameters(call.name)):
            faults.append(f"{call.name}: {fault}")
    return faults


def leaked_marks(text: str) -> list[str]:
    """Return the marks in a content: of special tokens, and of complete calls."""
    return _MARKS.findall(text)
