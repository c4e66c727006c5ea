"""The output items of a response, as its JSON body and its events have them.

Fields come in the order of the wire. An item that was cut off by the end of the answer has the status `incomplete`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class AnswerText(msgspec.Struct, tag_field="type", tag="output_text"):
    """The text of a message. Its log-probabilities come in the deltas, and in pieces at the end of the response."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class AnswerReasoning(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """Reasoning as the model has written it."""

    text: str


class AnswerSummary(msgspec.Struct, tag_field="type", tag="summary_text"):
    """Reasoning for clients that ask for its summary; it is the same text."""

    text: str


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    """A message of the assistant: none or one text."""

    id: str
    status: ItemStatus
    content: list[AnswerText]
    role: Literal["assistant"] = "assistant"


class OutputReasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    """Reasoning: its text is the `summary` or, if no summary was asked for, the `content`."""

    id: str
    status: ItemStatus
    summary: list[AnswerSummary]
    content: list[AnswerReasoning] | None
    encrypted_content: None = None


class OutputFunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    """A call of a function; `arguments` is the text of the model, mostly the JSON of an object."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class OutputCustomCall(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a tool that takes a text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class OutputToolSearch(msgspec.Struct, tag_field="type", tag="tool_search_call"):
    """A search for tools, which the client makes; `arguments` is an object."""

    id: str
    status: ItemStatus
    call_id: str
    arguments: dict[str, Any]
    execution: Literal["client"] = "client"


OutputItem = OutputMessage | OutputReasoning | OutputFunctionCall | OutputCustomCall | OutputToolSearch
