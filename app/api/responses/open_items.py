"""The output items that a model is writing: the events of each, and the item that it becomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from io import StringIO
from typing import Any, ClassVar, Final

import orjson
from msgspec import UNSET

from app.api.responses.asked import CalledTool
from app.api.responses.output_items import (
    AnswerReasoning,
    AnswerSummary,
    AnswerText,
    ItemStatus,
    OutputCustomCall,
    OutputFunctionCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputToolSearch,
)
from app.api.responses.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    InputDelta,
    InputDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ResponseEvent,
    SummaryDelta,
    SummaryDone,
    SummaryPartAdded,
    SummaryPartDone,
    TextDelta,
    TextDone,
)
from app.api.responses.text_logprobs import TextLogprobs

ID_BYTES = 24


def item_id(prefix: str, response_id: str, index: int) -> str:
    """Return the id of an item: a function of its place, so that a stream that is read again has the same."""
    return f"{prefix}_{blake2b(f'{response_id} {index}'.encode(), digest_size=ID_BYTES).hexdigest()}"


class OpenItem(ABC):
    """An output item while its text comes. One owner.

    Attributes:
        index: its place in the output.
        id: see `item_id`.
        is_whole: whether the item may end here.
    """

    prefix: ClassVar[str]

    def __init__(self, response_id: str, index: int) -> None:
        self.index = index
        self.id = item_id(self.prefix, response_id, index)
        self.is_whole = True
        self._text = StringIO()  # a list of pieces would take ten times the memory

    def begin(self) -> list[ResponseEvent]:
        """Return the events of the beginning: the item is added, still empty."""
        added = ItemAdded(output_index=self.index, item=self._item("in_progress", ""))
        return [added, *self._opening()]

    def add(self, text: str) -> Sequence[ResponseEvent]:
        """Take a piece of the text; return its events."""
        self._text.write(text)
        return self._piece(text)

    def keep(self, text: str) -> None:
        """Take a piece of the text whose events nobody needs."""
        self._text.write(text)

    def item(self, status: ItemStatus) -> OutputItem:
        """Return the item with the text so far."""
        return self._item(status, self._text.getvalue())

    def end(self, item: OutputItem) -> list[ResponseEvent]:
        """Return the events of the end, at which it has become `item`."""
        return [*self._closing(self._text.getvalue()), ItemDone(output_index=self.index, item=item)]

    @abstractmethod
    def _item(self, status: ItemStatus, text: str) -> OutputItem:
        """Return the item with a text; one in progress has none yet, and is empty."""

    def _opening(self) -> Sequence[ResponseEvent]:
        """Return the events between the beginning and the first piece."""
        return ()

    @abstractmethod
    def _piece(self, text: str) -> Sequence[ResponseEvent]:
        """Return the events of a piece."""

    @abstractmethod
    def _closing(self, text: str) -> Sequence[ResponseEvent]:
        """Return the events between the last piece and the end."""


class OpenMessage(OpenItem):
    """A message of the assistant."""

    prefix = "msg"

    def __init__(self, response_id: str, index: int, logprobs: TextLogprobs | None) -> None:
        super().__init__(response_id, index)
        self._logprobs = logprobs
        self._kept = bytearray()  # log-probabilities

    def _item(self, status: ItemStatus, text: str) -> OutputMessage:
        if status == "in_progress":
            return OutputMessage(self.id, status, [])
        logprobs = [] if self._logprobs is None else self._logprobs.whole(self._kept)
        return OutputMessage(self.id, status, [AnswerText(text, logprobs=logprobs)])

    def _opening(self) -> Sequence[ResponseEvent]:
        return (PartAdded(output_index=self.index, item_id=self.id, part=AnswerText("")),)

    def end(self, item: OutputItem) -> list[ResponseEvent]:
        """Return the events of the end; the log-probabilities come with the end of the response."""
        assert isinstance(item, OutputMessage)
        text = [AnswerText(part.text) for part in item.content]
        return super().end(OutputMessage(item.id, item.status, text))

    def _piece(self, text: str) -> Sequence[ResponseEvent]:
        logprobs = [] if self._logprobs is None else self._logprobs.give(self._kept)
        return (TextDelta(output_index=self.index, item_id=self.id, delta=text, logprobs=logprobs),)

    def _closing(self, text: str) -> Sequence[ResponseEvent]:
        return (
            TextDone(output_index=self.index, item_id=self.id, text=text),
            PartDone(output_index=self.index, item_id=self.id, part=AnswerText(text)),
        )


class OpenReasoning(OpenItem):
    """Reasoning as the model writes it."""

    prefix = "rs"

    def _item(self, status: ItemStatus, text: str) -> OutputReasoning:
        return OutputReasoning(self.id, status, [], [] if status == "in_progress" else [AnswerReasoning(text)])

    def _opening(self) -> Sequence[ResponseEvent]:
        return (PartAdded(output_index=self.index, item_id=self.id, part=AnswerReasoning("")),)

    def _piece(self, text: str) -> Sequence[ResponseEvent]:
        return (ReasoningDelta(output_index=self.index, item_id=self.id, delta=text),)

    def _closing(self, text: str) -> Sequence[ResponseEvent]:
        return (
            ReasoningDone(output_index=self.index, item_id=self.id, text=text),
            PartDone(output_index=self.index, item_id=self.id, part=AnswerReasoning(text)),
        )


class OpenSummary(OpenItem):
    """Reasoning for a client that asks for its summary."""

    prefix = "rs"

    def _item(self, status: ItemStatus, text: str) -> OutputReasoning:
        return OutputReasoning(self.id, status, [] if status == "in_progress" else [AnswerSummary(text)], None)

    def _opening(self) -> Sequence[ResponseEvent]:
        return (SummaryPartAdded(output_index=self.index, item_id=self.id, part=AnswerSummary("")),)

    def _piece(self, text: str) -> Sequence[ResponseEvent]:
        return (SummaryDelta(output_index=self.index, item_id=self.id, delta=text),)

    def _closing(self, text: str) -> Sequence[ResponseEvent]:
        return (
            SummaryDone(output_index=self.index, item_id=self.id, text=text),
            SummaryPartDone(output_index=self.index, item_id=self.id, part=AnswerSummary(text)),
        )


class OpenCall(OpenItem):
    """A call, whose text is its arguments. It may end when they are complete."""

    def __init__(self, response_id: str, index: int, tool: CalledTool, call_id: str) -> None:
        super().__init__(response_id, index)
        self.is_whole = False
        self._tool = tool
        self._call_id = call_id

    @property
    def _namespace(self) -> Any:
        return UNSET if self._tool.namespace is None else self._tool.namespace


class OpenFunctionCall(OpenCall):
    """A call of a function."""

    prefix = "fc"

    def _item(self, status: ItemStatus, text: str) -> OutputFunctionCall:
        return OutputFunctionCall(self.id, status, self._call_id, self._tool.name, text, self._namespace)

    def _piece(self, text: str) -> Sequence[ResponseEvent]:
        return (ArgumentsDelta(output_index=self.index, item_id=self.id, delta=text),)

    def _closing(self, text: str) -> Sequence[ResponseEvent]:
        return (ArgumentsDone(output_index=self.index, item_id=self.id, name=self._tool.name, arguments=text),)


class OpenCustomCall(OpenCall):
    """A call of a tool that takes a text, which is in the arguments that the model writes: it comes at the end."""

    prefix = "ctc"

    def _item(self, status: ItemStatus, text: str) -> OutputCustomCall:
        return OutputCustomCall(self.id, status, self._call_id, self._tool.name, _input_of(text), self._namespace)

    def _piece(self, text: str) -> Sequence[ResponseEvent]:
        return ()

    def _closing(self, text: str) -> Sequence[ResponseEvent]:
        given = _input_of(text)
        deltas = [InputDelta(output_index=self.index, item_id=self.id, delta=given)] if given else []
        return (*deltas, InputDone(output_index=self.index, item_id=self.id, input=given))


class OpenToolSearch(OpenCall):
    """A search for tools: its arguments are an object, which comes at the end."""

    prefix = "tsc"

    def _item(self, status: ItemStatus, text: str) -> OutputToolSearch:
        return OutputToolSearch(self.id, status, self._call_id, _object_of(text) if text else {})

    def _piece(self, text: str) -> Sequence[ResponseEvent]:
        return ()

    def _closing(self, text: str) -> Sequence[ResponseEvent]:
        return ()


_CALLS: Final[dict[str, type[OpenCall]]] = {
    "function": OpenFunctionCall,
    "custom": OpenCustomCall,
    "tool_search": OpenToolSearch,
}


def open_call(response_id: str, index: int, tool: CalledTool, call_id: str) -> OpenCall:
    """Return the item of a call."""
    return _CALLS[tool.kind](response_id, index, tool, call_id)


def _object_of(arguments: str) -> dict[str, Any]:
    """Return the object that is a call's arguments; what is none, or was cut off, is a text in one."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        found = None
    return found if isinstance(found, dict) else {"arguments": arguments}


def _input_of(arguments: str) -> str:
    """Return the text that is the `input` of a call's arguments; if there is none, all that the model has written."""
    given = _object_of(arguments).get("input")
    return given if isinstance(given, str) else arguments
