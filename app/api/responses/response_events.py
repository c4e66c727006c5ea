"""The events of a streamed response. Their types are OpenAI's, their fields come in the order of the wire."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from app.api.responses.output_items import AnswerReasoning, AnswerSummary, AnswerText, OutputItem
from app.api.responses.resource import ResponseObject


class ResponseEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    """An event; `sequence_number` is its number in the stream, from 0. On a WebSocket `stream_id` is the client's."""

    sequence_number: int = 0
    stream_id: str | UnsetType = UNSET


class StateEvent(ResponseEvent, kw_only=True):
    """The response has another state."""

    response: ResponseObject


class Created(StateEvent, tag="response.created"):
    """The response was accepted."""


class Queued(StateEvent, tag="response.queued"):
    """The response waits, and its client need not."""


class InProgress(StateEvent, tag="response.in_progress"):
    """The model works on the response."""


class Completed(StateEvent, tag="response.completed"):
    """The model has ended the response."""


class Incomplete(StateEvent, tag="response.incomplete"):
    """A limit has ended the response."""


class Failed(StateEvent, tag="response.failed"):
    """An error has ended the response."""


class ItemEvent(ResponseEvent, kw_only=True):
    """Something happens to an output item, which has a place among all."""

    output_index: int


class ItemAdded(ItemEvent, kw_only=True, tag="response.output_item.added"):
    """An item begins, still empty."""

    item: OutputItem


class ItemDone(ItemEvent, kw_only=True, tag="response.output_item.done"):
    """An item has ended."""

    item: OutputItem


class InItem(ItemEvent, kw_only=True):
    """Something happens inside an output item."""

    item_id: str


class PartAdded(InItem, kw_only=True, tag="response.content_part.added"):
    """The part of an item begins, still empty."""

    part: AnswerText | AnswerReasoning
    content_index: int = 0


class PartDone(InItem, kw_only=True, tag="response.content_part.done"):
    """The part of an item has ended."""

    part: AnswerText | AnswerReasoning
    content_index: int = 0


class TextDelta(InItem, kw_only=True, tag="response.output_text.delta"):
    """A piece of a message's text, and the log-probabilities of its tokens."""

    delta: str
    content_index: int = 0
    logprobs: list[Any] = []


class TextDone(InItem, kw_only=True, tag="response.output_text.done"):
    """A message's text has ended."""

    text: str
    content_index: int = 0
    logprobs: list[Any] = []


class ReasoningDelta(InItem, kw_only=True, tag="response.reasoning_text.delta"):
    """A piece of reasoning."""

    delta: str
    content_index: int = 0


class ReasoningDone(InItem, kw_only=True, tag="response.reasoning_text.done"):
    """Reasoning has ended."""

    text: str
    content_index: int = 0


class SummaryPartAdded(InItem, kw_only=True, tag="response.reasoning_summary_part.added"):
    """The summary of reasoning begins, still empty."""

    part: AnswerSummary
    summary_index: int = 0


class SummaryPartDone(InItem, kw_only=True, tag="response.reasoning_summary_part.done"):
    """The summary of reasoning has ended."""

    part: AnswerSummary
    summary_index: int = 0


class SummaryDelta(InItem, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """A piece of the summary of reasoning."""

    delta: str
    summary_index: int = 0


class SummaryDone(InItem, kw_only=True, tag="response.reasoning_summary_text.done"):
    """The text of the summary has ended."""

    text: str
    summary_index: int = 0


class ArgumentsDelta(InItem, kw_only=True, tag="response.function_call_arguments.delta"):
    """A piece of the arguments of a function's call."""

    delta: str


class ArgumentsDone(InItem, kw_only=True, tag="response.function_call_arguments.done"):
    """The arguments of a function's call have ended."""

    name: str
    arguments: str


class InputDelta(InItem, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """The input of a custom tool's call; it comes in one piece."""

    delta: str


class InputDone(InItem, kw_only=True, tag="response.custom_tool_call_input.done"):
    """The input of a custom tool's call has ended."""

    input: str
