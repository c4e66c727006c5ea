"""Calls whose name stands on a line of its own."""

from __future__ import annotations

import pytest

from app.text.calls.formats import FORMATS
from app.text.reading.answer_events import Arguments, CallBegin, Text
from app.text.reading.parser import Parser
from tests.text.answer.answers import SCHEMAS, calls_of, joined, parse_calls, text_of

MARK = "<|assistant|>"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('search\n{"text": "x"}', [("search", {"text": "x"})]),
        ("\n get-time \r\n\n {}", [("get-time", {})]),
        (f"a_1\n{{}}{MARK}search\n{{}}", [("a_1", {}), ("search", {})]),
        (f"a_1\n{{}}\n{MARK}\nsearch\n{{}}\n", [("a_1", {}), ("search", {})]),
    ],
)
def test_a_name_and_json_on_lines_are_a_call(text: str, calls: list[object]):
    events = parse_calls("glm4_0414", text)
    assert (calls_of(events), text_of(events)) == (calls, "")
    assert parse_calls("glm4_0414", *text) == events


@pytest.mark.parametrize(
    "text",
    [
        "search",
        "search\n",
        "search {}",
        "search: {}",
        "other\n{}",
        "The search\n{}",
        "search\nfor {}",
        f"Hi{MARK}\nBye",
    ],
)
def test_what_is_no_call_stays_text(text: str):
    assert parse_calls("glm4_0414", text) == [Text(text)] == parse_calls("glm4_0414", *text)


def test_arguments_are_sent_as_they_come():
    parser = Parser(FORMATS["glm4_0414"].syntax.machine(SCHEMAS))
    events = joined([event for char in 'search\n{"text": "one two' for event in parser.feed(char)])
    assert events == [CallBegin(0, "search"), Arguments(0, '{"text": "one two')]
