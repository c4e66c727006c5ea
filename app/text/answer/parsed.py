"""The contents of an answer for clients: text, reasoning and calls, in the order in which the model wrote them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from app.contract.events import FinishReason
from app.text.answer.answer_format import AnswerParser
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Event, Reasoning, Text

ID_BYTES = 12


class CallPiece(NamedTuple):
    """A piece of a call, or all of it: `call` is its number in the answer; its name comes with the first piece."""

    call: int
    is_first: bool
    name: str
    arguments: str


class Parsed(NamedTuple):
    """The contents of a part of an answer, or of all of it. Any thread.

    `events` have the order; the other members are made of them, for messages, which have a text beside the calls.
    """

    events: tuple[Event, ...] = ()

    @property
    def text(self) -> str:
        """The text that is the answer itself."""
        return "".join([event.text for event in self.events if isinstance(event, Text)])

    @property
    def reasoning(self) -> str:
        """The text of the reasoning."""
        return "".join([event.text for event in self.events if isinstance(event, Reasoning)])

    @property
    def calls(self) -> tuple[CallPiece, ...]:
        """The pieces of each call in it."""
        pieces: dict[int, CallPiece] = {}
        for event in self.events:
            if isinstance(event, CallBegin):
                pieces[event.call] = CallPiece(event.call, True, event.name, "")
            elif isinstance(event, Arguments):
                piece = pieces.get(event.call) or CallPiece(event.call, False, "", "")
                pieces[event.call] = piece._replace(arguments=piece.arguments + event.text)
        return tuple(pieces.values())


class MergedEvents:
    """Collects the events of an answer; those of one kind that follow each other become one. One owner."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._open: Text | Reasoning | Arguments | None = None  # the last event, which may go on
        self._texts: list[str] = []  # those of the open event

    def add(self, events: Iterable[Event]) -> None:
        """Add the next events."""
        for event in events:
            if isinstance(event, CallBegin | CallEnd):
                self._close()
                self._events.append(event)
                continue
            if type(event) is not type(self._open) or event[:-1] != self._open[:-1]:  # kinds, and numbers of calls
                self._close()
                self._open = event
            self._texts.append(event.text)

    def take(self) -> Parsed:
        """Return the events and forget them."""
        self._close()
        parsed, self._events = Parsed(tuple(self._events)), []
        return parsed

    def _close(self) -> None:
        if self._open is not None:
            self._events.append(self._open._replace(text="".join(self._texts)))
            self._open, self._texts = None, []


def parse_whole(parser: AnswerParser, text: str) -> Parsed:
    """Return the contents of an answer; the parser is used up."""
    return Parsed((*parser.feed(text), *parser.finish()))


def client_reason(reason: FinishReason, parser: AnswerParser | None) -> FinishReason:
    """Return the finish reason of an answer for clients: with calls that are all complete it is `tool_calls`."""
    has_called = reason is FinishReason.STOP and parser is not None and parser.has_called
    return FinishReason.TOOL_CALLS if has_called else reason


def call_id(request_id: str, choice: int, call: int) -> str:
    """Return the id of a call: a function of its place, so that a stream that is read again has the same."""
    digest = blake2b(f"{request_id} {choice} {call}".encode(), digest_size=ID_BYTES)
    return f"call_{digest.hexdigest()}"
