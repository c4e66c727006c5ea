"""An answer that is parsed as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from app.contract.events import FinishReason
from app.text.answer.answer_format import AnswerParser
from app.text.reading.answer_events import Arguments, CallBegin, Event, Reasoning, Text
from app.text.reading.marks import SHOWN

ID_BYTES = 12


class WholeAnswer(NamedTuple):
    """The text, the reasoning, and the calls: names and arguments."""

    text: str
    reasoning: str
    calls: list[tuple[str, str]]


class WholeAnswerReader:
    """Parses an answer as it comes, and returns all of it at the end; without a parser all of it is text. One owner."""

    def __init__(self, parser: AnswerParser | None) -> None:
        self._parser = parser
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, list[str]]] = []

    def feed(self, text: str) -> None:
        """Take the next piece of the answer."""
        self._add([Text(text)] if self._parser is None else self._parser.feed(text))

    def finish(self) -> WholeAnswer:
        """Take the end of the answer; return what it holds. The parser is used up."""
        self._add([] if self._parser is None else self._parser.finish())
        calls = [(name, plain("".join(pieces))) for name, pieces in self._calls]
        return WholeAnswer(plain("".join(self._texts)), plain("".join(self._reasoning)), calls)

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Text):
                self._texts.append(event.text)
            elif isinstance(event, Reasoning):
                self._reasoning.append(event.text)
            elif isinstance(event, CallBegin):
                self._calls.append((event.name, []))
            elif isinstance(event, Arguments):
                self._calls[event.call][1].append(event.text)


def parse_whole(parser: AnswerParser, text: str) -> WholeAnswer:
    """Parse a whole answer; the parser is used up."""
    reader = WholeAnswerReader(parser)
    reader.feed(text)
    return reader.finish()


def client_reason(reason: FinishReason, parser: AnswerParser | None) -> FinishReason:
    """Return the finish reason of an answer for clients: with calls that are all complete it is `tool_calls`."""
    has_called = reason is FinishReason.STOP and parser is not None and parser.has_called
    return FinishReason.TOOL_CALLS if has_called else reason


def plain(text: str) -> str:
    """Return text without the characters before special tokens that are no marks of anything."""
    return text.replace(SHOWN, "") if SHOWN in text else text


def call_id(request_id: str, choice: int, call: int) -> str:
    """Return the id of a call: a function of its place, so that a stream that is read again has the same."""
    digest = blake2b(f"{request_id} {choice} {call}".encode(), digest_size=ID_BYTES)
    return f"call_{digest.hexdigest()}"
