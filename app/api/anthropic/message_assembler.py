"""From the events of an answer to the content blocks of a message.

A stream tells the changes of the blocks, and a JSON body has the blocks that all changes make, so that the two cannot
differ. A block begins when something of it comes, so none is empty, and ends before the next one begins. Text behind a
call is a new block, and so is reasoning behind text.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import orjson

from app.api.anthropic.message_answers import TextContent, ThinkingContent, ToolUseContent
from app.text.answer.parsed import call_id
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Event, Reasoning, Text

SIGNATURE_BYTES = 16
Content = TextContent | ThinkingContent | ToolUseContent
_KINDS: Mapping[type[Event], str] = {
    Text: "text_delta",
    Reasoning: "thinking_delta",
    Arguments: "input_json_delta",
}
SIGNATURE = "signature_delta"


class BlockStart(NamedTuple):
    """A block begins: its number in the message, from 0, and the empty block."""

    number: int
    block: Content


class BlockDelta(NamedTuple):
    """A piece of the open block: the type of the delta, and its text."""

    number: int
    kind: str
    text: str


class BlockStop(NamedTuple):
    """A block is complete, or breaks off."""

    number: int


Change = BlockStart | BlockDelta | BlockStop


class MessageAssembler:
    """Turns the events of one answer into changes of its blocks. One owner."""

    def __init__(self, message_id: str) -> None:
        self._message_id = message_id
        self._index = -1  # of the last block
        self._open: type[Event] | None = None  # the kind of events that belong to the open block
        self._digest = blake2b(digest_size=SIGNATURE_BYTES)  # of the open block's reasoning

    def take(self, events: Iterable[Event]) -> list[Change]:
        """Take the next events; return what they change."""
        changes: list[Change] = []
        for event in events:
            match event:
                case Text() | Reasoning() if event.text:
                    if self._open is not type(event):
                        block: Content = TextContent("") if isinstance(event, Text) else ThinkingContent("", "")
                        self._begin(type(event), block, changes)
                    if isinstance(event, Reasoning):
                        self._digest.update(event.text.encode())
                    changes.append(BlockDelta(self._index, _KINDS[type(event)], event.text))
                case CallBegin():
                    name = f"toolu_{call_id(self._message_id, 0, event.call).removeprefix('call_')}"
                    self._begin(Arguments, ToolUseContent(name, event.name, {}), changes)
                case Arguments() if event.text:
                    changes.append(BlockDelta(self._index, _KINDS[Arguments], event.text))
                case CallEnd():
                    changes += self.close()
        return changes

    def close(self) -> list[Change]:
        """End the open block, if there is one; return what that changes. Idempotent."""
        kind, self._open = self._open, None
        if kind is None:
            return []
        stop = BlockStop(self._index)
        if kind is not Reasoning:
            return [stop]
        return [BlockDelta(self._index, SIGNATURE, b64encode(self._digest.digest()).decode()), stop]

    def _begin(self, kind: type[Event], block: Content, changes: list[Change]) -> None:
        changes += self.close()
        self._open = kind
        self._index += 1
        self._digest = blake2b(digest_size=SIGNATURE_BYTES)
        changes.append(BlockStart(self._index, block))


@dataclass(slots=True)
class _Block:
    """A block as far as it was told."""

    begun: Content
    texts: list[str] = field(default_factory=list)
    signature: str = ""

    @property
    def content(self) -> Content:
        text = "".join(self.texts)
        match self.begun:
            case TextContent():
                return TextContent(text)
            case ThinkingContent():
                return ThinkingContent(text, self.signature)
        return ToolUseContent(self.begun.id, self.begun.name, _object(text))


class MessageContent:
    """The blocks that changes make, as a client of a stream accumulates them. One owner."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def add(self, changes: Iterable[Change]) -> None:
        """Add the next changes."""
        for change in changes:
            match change:
                case BlockStart():
                    self._blocks.append(_Block(change.block))
                case BlockDelta() if change.kind == SIGNATURE:
                    self._blocks[change.number].signature = change.text
                case BlockDelta():
                    self._blocks[change.number].texts.append(change.text)

    @property
    def blocks(self) -> list[Content]:
        """All blocks, as a JSON body has them."""
        return [block.content for block in self._blocks]


def _object(arguments: str) -> Any:
    """Return the arguments of a call as the model has written them; {} if they are not the JSON of an object."""
    try:
        is_object = isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        is_object = False
    return msgspec.Raw(arguments.encode()) if is_object else {}
