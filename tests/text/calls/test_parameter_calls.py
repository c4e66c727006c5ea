"""Calls with a mark around every parameter."""

import json

import pytest

from app.text.answer.parser import Parser
from app.text.calls.formats import FORMATS
from app.text.reading.answer_events import Arguments, CallBegin, Text
from tests.text.answer.answers import SCHEMAS, calls_of, parse_calls, text_of


def glm(key: str, value: str) -> str:
    return f"<tool_call>search\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("text", "12", "12"),
        ("text", ' a "b"\n\\ 猫 ', ' a "b"\n\\ 猫 '),
        ("count", " 12 ", 12),
        ("count", "many", "many"),
        ("is_new", "true", True),
        ("is_new", "True", True),
        ("rest", "None", None),
        ("rest", '{"a": [1, "x"]}', {"a": [1, "x"]}),
        ("unknown", "12", 12),
        ("unknown", "twelve", "twelve"),
        ("unknown", "NaN", "NaN"),
        ("unknown", "[" * 3000, "[" * 3000),
    ],
)
def test_values_have_the_types_of_the_schema(key, value, expected):
    text = glm(key, value)
    assert calls_of(parse_calls("glm", text)) == [("search", {key: expected})]
    assert parse_calls("glm", text) == parse_calls("glm", *text)


def test_strings_are_passed_on_as_they_come():
    parser = Parser(FORMATS["glm"].form.machine(SCHEMAS))
    text = glm("text", "one two three")
    seen = [parser.feed(char) for char in text[: text.index(" three")]]
    assert "".join(event.text for events in seen for event in events if isinstance(event, Arguments)) == (
        '{"text": "one two'
    )


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>", '{"a": "x"}'),
        ("<tool_call>\n<function=f>\n</function>\n</tool_call>", "{}"),
        ("<function=f><parameter=a>x</parameter></function>", '{"a": "x"}'),
        ("<seed:tool_call>\n<function=f>\n<parameter=a>x</parameter>\n</function>\n</seed:tool_call>", '{"a": "x"}'),
        ("<tool_call>\n<function=f>\n<parameter=a>\n\nx\n\n</parameter>\n</function>", '{"a": "\\nx\\n"}'),
        ("<tool_call>\n<function=f>\n<parameter=a>\nx", '{"a": '),
        ("<tool_call>\n<function=f>\n<parameter=a", "{"),
    ],
)
def test_calls_of_qwen(text, arguments):
    events = parse_calls("qwen3_coder", text)
    assert events == parse_calls("qwen3_coder", *text)
    assert events[0] == CallBegin(0, "f")
    assert "".join(event.text for event in events if isinstance(event, Arguments)) == arguments


def test_what_is_no_call_stays_text():
    for text in ("<tool_call>two words\n<arg_key>", "<tool_call>", "<tool_call>f", "<tool_call>f<arg_ke"):
        assert parse_calls("glm", text) == [Text(text)]
    assert parse_calls("qwen3_coder", "<tool_call>\nx") == [Text("<tool_call>\nx")]


def test_text_behind_a_broken_call_is_kept():
    events = parse_calls("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value> so")
    assert text_of(events).strip() == "so"
    assert json.loads(events[1].text + "}") == {"a": 1}
