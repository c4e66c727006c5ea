"""Answers of calls alone, and which calls are complete, wherever the end cuts them off."""

import json
from collections.abc import Sequence

import pytest

from app.text.answer.answer_format import AnswerFormat, AnswerParser
from app.text.answer.parsed import Parsed, parse_whole
from app.text.answer.reasoning import STYLES
from app.text.calls.formats import FORMATS
from app.text.calls.tool_schemas import ToolSchemas
from app.text.reading.answer_events import Event
from tests.text.answer.answers import TOOLS, WRITERS, calls_of, text_of

CALLS = [("search", {"text": "a b", "count": 3}), ("a_1", {})]


def parser_of(name: str, *, is_calls_alone: bool) -> AnswerParser:
    parser = AnswerFormat(FORMATS[name]).new_parser(ToolSchemas(TOOLS, is_calls_alone=is_calls_alone), is_inside=False)
    assert parser is not None
    return parser


def parsed(name: str, text: str, *, is_calls_alone: bool = False) -> tuple[Parsed, bool]:
    """What an answer holds, and whether it has called."""
    parser = parser_of(name, is_calls_alone=is_calls_alone)
    return parse_whole(parser, text), parser.has_called


@pytest.mark.parametrize("name", WRITERS)
def test_an_answer_has_called_if_its_calls_are_complete(name: str):
    text = WRITERS[name](CALLS[:1])
    for end in range(len(text) + 1):
        whole, has_called = parsed(name, text[:end])
        if has_called:
            assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == CALLS[:1]
    assert has_called
    assert not any(parsed(name, text[:end])[1] for end in range(len(text) // 2))


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_cut_off_calls_alone_is_no_text(name: str):
    text = WRITERS[name](CALLS)
    for end in range(len(text) + 1):
        whole, _ = parsed(name, text[:end], is_calls_alone=True)
        assert whole.text == ""
        assert not whole.calls or whole.calls == parsed(name, text[:end])[0].calls
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == CALLS


@pytest.mark.parametrize("name", WRITERS)
def test_calls_alone_are_read_as_they_come(name: str):
    parser = parser_of(name, is_calls_alone=True)
    events: Sequence[Event] = [event for char in WRITERS[name](CALLS) for event in parser.feed(char)]
    events = [*events, *parser.finish()]
    assert (calls_of(events), text_of(events)) == (CALLS, "")
    assert parser.has_called


def test_calls_alone_may_follow_reasoning():
    answers = AnswerFormat(FORMATS["hermes"], STYLES["think"])
    parser = answers.new_parser(ToolSchemas(TOOLS, is_calls_alone=True), is_inside=False)
    whole = parse_whole(parser, "<think>Hm.</think>\n\n<tool_")
    assert (whole.text, whole.reasoning, whole.calls) == ("", "Hm.", ())


def test_one_call_that_breaks_off_is_enough():
    whole = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
    assert parsed("hermes", whole * 2)[1]
    assert not parsed("hermes", f'{whole}<tool_call>{{"name": "search", "arg')[1]
    assert parsed("hermes", f"{whole}<tool_call>")[1], "no call has begun"
    assert not parsed("hermes", "It is warm.")[1]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(("takes_several", "is_parallel"), [(True, False), (False, True)])
def test_calls_behind_the_only_one_that_may_be_are_left_out(name: str, takes_several: bool, is_parallel: bool):
    """However the answer is cut into pieces; text beside calls stays."""
    answers, schemas = AnswerFormat(FORMATS[name], takes_several_calls=takes_several), ToolSchemas(TOOLS)
    schemas.is_parallel = is_parallel
    text = WRITERS[name](CALLS)
    for size in (1, len(text)):
        parser = answers.new_parser(schemas, is_inside=False)
        assert parser is not None
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        events: Sequence[Event] = [event for piece in pieces for event in parser.feed(piece)]
        events = [*events, *parser.finish()]
        assert calls_of(events) == CALLS[:1]
        assert text_of(events) == text_of([*parse_all(name, text)])
        assert parser.has_called


def parse_all(name: str, text: str) -> Sequence[Event]:
    parser = parser_of(name, is_calls_alone=False)
    return [*parser.feed(text), *parser.finish()]
