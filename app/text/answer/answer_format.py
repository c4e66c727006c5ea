"""How the answers of one model are parsed: the syntax of its calls, and the marks of its reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.text.answer.choose import AUTO, choose_format, choose_reasoning
from app.text.answer.reasoning import ReasoningStyle
from app.text.calls.formats import CallFormat
from app.text.calls.tool_schemas import ToolSchemas
from app.text.reading.answer_events import CallBegin, CallEnd, Event, Reasoning, Text
from app.text.reading.marks import SHOWN
from app.text.reading.parser import Parser


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The format of one model's answers. Any thread.

    Attributes:
        calls: the syntax of its calls; None if they are not parsed.
        reasoning: the marks of its reasoning; None if it is not separated.
        special_tokens: the model's special tokens and their ids.
        takes_several_calls: whether the model's template takes messages with several calls; else an answer has one.
    """

    calls: CallFormat | None = None
    reasoning: ReasoningStyle | None = None
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    takes_several_calls: bool = True

    @classmethod
    def of_template(
        cls,
        source: str,
        special_tokens: Mapping[str, int],
        *,
        tool_parser: str = AUTO,
        reasoning_parser: str = AUTO,
        takes_several_calls: bool = True,
    ) -> AnswerFormat:
        """Return the format that a chat template tells, or the settings."""
        calls, reasoning = choose_format(source, tool_parser), choose_reasoning(source, reasoning_parser)
        return cls(calls, reasoning, dict(special_tokens), takes_several_calls)

    def __str__(self) -> str:
        calls, reasoning = (found.name if found else "none" for found in (self.calls, self.reasoning))
        return f"calls of tools: {calls}, reasoning: {reasoning}"

    def shown_token_ids(self, has_tools: bool) -> frozenset[int]:
        """Return the special tokens that the parsers must see, for a request with or without tools."""
        marks = [*(self.reasoning.marks if self.reasoning else ())]
        if has_tools and self.calls is not None:
            marks += self.calls.syntax.marks
        return frozenset(self.special_tokens[mark] for mark in marks if mark in self.special_tokens)

    def new_parser(self, schemas: ToolSchemas | None, *, is_inside: bool) -> AnswerParser | None:
        """Return a parser for one answer, or None if nothing is parsed.

        `schemas` are those of the request's tools, None if it has none; with `is_inside` the prompt has begun the
        answer's reasoning.
        """
        special = frozenset(self.special_tokens)
        parsers: list[Parser] = []
        if self.reasoning is not None:
            parsers.append(Parser(self.reasoning.resolved(special).machine(is_inside=is_inside)))
        if self.calls is not None and schemas is not None:
            parsers.append(Parser(self.calls.syntax.resolved(special).machine(schemas)))
        if not parsers:
            return None
        is_calls_alone = schemas is not None and schemas.is_calls_alone
        is_parallel = self.takes_several_calls and (schemas is None or schemas.is_parallel)
        return AnswerParser(parsers, is_calls_alone=is_calls_alone, is_parallel=is_parallel)


class AnswerParser:
    """Parsers in a row: the text that one has found goes to the next. One owner; no I/O.

    With `is_calls_alone` what is no call and no reasoning is dropped: the end has cut it off, or it belongs to a call.
    Without `is_parallel` calls behind the first one are dropped: nothing but a grammar keeps a model from writing them.
    """

    def __init__(self, parsers: Sequence[Parser], *, is_calls_alone: bool = False, is_parallel: bool = True) -> None:
        self._parsers = tuple(parsers)
        self._is_calls_alone = is_calls_alone
        self._is_parallel = is_parallel
        self._num_begun = self._num_whole = 0

    @property
    def has_called(self) -> bool:
        """Whether calls have begun, and the arguments of all are complete."""
        return 0 < self._num_begun == self._num_whole

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of the answer; return what it completes."""
        return self._noted(self._through([Text(text)] if text else [], self._parsers))

    def finish(self) -> list[Event]:
        """Take the end of the answer; return the rest."""
        events: list[Event] = []
        for parser in self._parsers:
            events = [*self._through(events, [parser]), *parser.finish()]
        return self._noted(events)

    def _through(self, events: Sequence[Event], parsers: Sequence[Parser]) -> list[Event]:
        found = list(events)
        for parser in parsers:
            found = [
                each for event in found for each in (parser.feed(event.text) if isinstance(event, Text) else [event])
            ]
        return found

    def _noted(self, events: list[Event]) -> list[Event]:
        if not self._is_parallel:
            events = [event for event in events if isinstance(event, Text | Reasoning) or event.call == 0]
        self._num_begun += sum(isinstance(event, CallBegin) for event in events)
        self._num_whole += sum(isinstance(event, CallEnd) for event in events)
        return [_plain(event) for event in events if not (self._is_calls_alone and isinstance(event, Text))]


def _plain(event: Event) -> Event:
    """Return an event without the characters before special tokens that are no marks of anything."""
    if isinstance(event, CallBegin | CallEnd) or SHOWN not in event.text:
        return event
    return event._replace(text=event.text.replace(SHOWN, ""))
