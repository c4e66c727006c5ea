"""Calls as Python writes them: where they begin and end, what breaks them, and what a grammar allows."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest

from app.text.calls.call_grammar import CallGrammar
from app.text.calls.formats import FORMATS
from app.text.calls.tool_schemas import Unwritable
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Text
from app.text.reading.parser import Parser
from tests.text.answer.answers import AS_PYTHON, SCHEMAS, WRITERS, calls_of, joined, parse_calls, text_of
from tests.text.toys import toy

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"{BEGIN}[f(a='x')]{END}", [("f", {"a": "x"})]),
        (f"{BEGIN}[f(a='it's', b='sed -n '1,9p' f.py')]{END}", [("f", {"a": "it's", "b": "sed -n '1,9p' f.py"})]),
        (f"{BEGIN}\n[\n  f( a = 1 , ),\n  g.h-1(),\n]\n{END}", [("f", {"a": 1}), ("g.h-1", {})]),
        (f"{BEGIN}f(a=1){END}", [("f", {"a": 1})]),
        (f"{BEGIN}[f(from=1, class=2)]{END}", [("f", {"from": 1, "class": 2})]),
        (f"{BEGIN}[f()]{END}{BEGIN}[g()]{END}", [("f", {}), ("g", {})]),
        (f'{BEGIN}[f(a={{"x": [true, null], "y": {{}}}})]{END}', [("f", {"a": {"x": [True, None], "y": {}}})]),
    ],
)
def test_calls_between_marks(text, calls):
    events = parse_calls("lfm2", f"Well. {text} So.")
    assert calls_of(events) == calls
    assert text_of(events) == "Well.So." or text_of(events) == "Well. So."
    assert parse_calls("lfm2", *f"Well. {text} So.") == events


@pytest.mark.parametrize(
    "text",
    [
        f"{BEGIN}[f({END}",
        f"{BEGIN}[f(x, y)]{END}",
        f"{BEGIN}[f('x')]{END}",
        f"{BEGIN}[{'f' * 257}(a=1)]{END}",
        f"{BEGIN}[]{END}",
        f"{BEGIN}{{}}{END}",
        f"{BEGIN}[f(a",
        f"[f(a=1)]{END}",
    ],
)
def test_what_is_no_call_stays_text(text):
    assert parse_calls("lfm2", text) == [Text(text)] == parse_calls("lfm2", *text)


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        ("[f(a=1 b=2)] so", '{"a": 1', "b=2)] so"),
        ("[f(a=x, b=2)]", '{"a": ', "x, b=2)]"),
        ("[f(a=1, 'x')]", '{"a": 1', "'x')]"),
        ("[f(a=[1 2])]", '{"a": [1', "2])]"),
        ("[f(a={1: 2})]", '{"a": {', "1: 2})]"),
        ("[f(a=(1, 2))]", '{"a": ', "(1, 2))]"),
        ("[f(a=open('x'))]", '{"a": ', "open('x'))]"),
        (f"[f(a={'[' * 65}1{']' * 65})]", f'{{"a": {"[" * 64}', f"[1{']' * 65})]"),
        (f"[f(a={'1' * 300})]", '{"a": ', f"{'1' * 300})]"),
    ],
)
def test_text_behind_a_broken_call_is_kept(text, arguments, rest):
    events = parse_calls("lfm2", BEGIN + text)
    assert events == [CallBegin(0, "f"), Arguments(0, arguments), Text(rest)]
    assert parse_calls("lfm2", *(BEGIN + text)) == events


def test_lists_may_be_nested_64_deep():
    text = f"{BEGIN}[f(a={'[' * 64}{']' * 64})]"
    ((_, fields),) = calls_of(parse_calls("lfm2", text))
    assert json.dumps(fields["a"]) == "[" * 64 + "]" * 64


@pytest.mark.parametrize(
    ("text", "has_call"),
    [
        ("[search(text='x')]", True),
        ("\n [search()]", True),
        ("[other(text='x')]", False),
        ("[search](http://x)", False),
        ("[1, 2]", False),
        ("search(text='x')", False),
        ("Well: [search(text='x')]", False),
        ("<|python_start|>[other(text='x')]<|python_end|>", True),
        ("<|python_start|>print(1)<|python_end|>", False),
    ],
)
def test_a_list_without_marks_begins_the_answer_and_calls_a_tool(text, has_call):
    events = parse_calls("pythonic", text)
    assert any(isinstance(event, CallBegin) for event in events) == has_call
    assert text_of(events) == ("" if has_call else text)
    assert parse_calls("pythonic", *text) == events


def test_arguments_are_sent_as_they_come():
    parser = Parser(FORMATS["lfm2"].syntax.machine(SCHEMAS))
    text = f"{BEGIN}[f(a='one two three', b=[1, 22"
    events = joined([event for char in text for event in parser.feed(char)])
    assert events == [CallBegin(0, "f"), Arguments(0, '{"a": "one two three", "b": [1, ')]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lfm2", f"{BEGIN}[f(), "),
        ("lfm2", f"{BEGIN}[f()"),
        ("json_list", '<TOOLCALL>[{"name": "f", "arguments": {}}, '),
        ("json_list", '<TOOLCALL>[{"name": "f", "arguments": {}}'),
    ],
)
def test_a_list_that_is_cut_between_calls_leaves_no_text(name, text):
    events = parse_calls(name, text)
    assert events == [CallBegin(0, "f"), Arguments(0, "{}"), CallEnd(0)]
    assert parse_calls(name, *text) == events


DEFINITIONS = {
    "unit": {"enum": ["C", "F"]},
    "tree": {"type": "object", "properties": {"of": {"$ref": "#/properties/a"}}},
}
PARAMETERS = {
    "properties": {"a": {"$ref": "#/$defs/unit"}, "b": {"type": "boolean"}, "c": {"$ref": "#/$defs/tree"}},
    "required": ["a", "d"],
    "additionalProperties": {"type": "string", "maxLength": 3},
    "$defs": DEFINITIONS,
}


def accepts(name: str, parameters: Any, arguments: dict[str, Any]) -> bool:
    """Whether the grammar of a required call accepts a call as templates write it."""
    tool = {"function": {"name": "f", "parameters": parameters}}
    grammar = CallGrammar(FORMATS[name].syntax, [tool], {}).required(is_parallel=False)
    vocabulary = llguidance.LLTokenizer(toy("byte_level")[1].to_str())
    matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    text = WRITERS[name]([("f", arguments)]).removeprefix("<|python_start|>").removesuffix("<|python_end|>")
    token_ids = vocabulary.tokenize_str(text.replace("'", '"'))
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", AS_PYTHON)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"a": "C", "d": "x"}, True),
        ({"a": "C", "b": True, "c": {"of": "F"}, "d": "x"}, True),
        ({"a": "C"}, False),
        ({"a": "D", "d": "x"}, False),
        ({"a": "C", "c": {"of": "D"}, "d": "x"}, False),
        ({"a": "C", "d": "long"}, False),
        ({"a": "C", "d": "x", "e": "y"}, False),
    ],
)
def test_arguments_satisfy_the_schema(name: str, arguments: dict[str, Any], expected: bool):
    assert accepts(name, PARAMETERS, arguments) is expected


@pytest.mark.parametrize("name", AS_PYTHON)
def test_further_arguments_have_their_schema(name: str):
    parameters = {"additionalProperties": {"type": "integer"}}
    assert accepts(name, parameters, {"a": 1, "b": 2})
    assert not accepts(name, parameters, {"a": "x"})


@pytest.mark.parametrize("name", AS_PYTHON)
def test_schemas_that_cannot_be_checked_are_named(name: str):
    with pytest.raises(Unwritable, match="oneOf"):
        accepts(name, {"oneOf": [{"required": ["a"]}]}, {})
