"""Calls with a mark around every parameter: what is read, and that a grammar allows what the schema does."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from tokenizers import AddedToken

from app.contract.grammar import Grammar, GrammarKind
from app.text.calls.call_grammar import CallGrammar
from app.text.calls.formats import FORMATS
from app.text.calls.tool_schemas import ToolSchemas, Unwritable
from app.text.grammar.compile import compile_grammar
from app.text.grammar.vocabulary import GrammarVocabulary
from app.text.reading.answer_events import Arguments, CallBegin, Text
from app.text.reading.marks import SHOWN
from app.text.reading.parser import Parser
from app.text.tokens.tokenizer import Tokenizer
from tests.text.answer.answers import SCHEMAS, WITH_PARAMETERS, WRITERS, calls_of, parse, parse_calls, text_of
from tests.text.toys import byte_level


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
    parser = Parser(FORMATS["glm"].syntax.machine(SCHEMAS))
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


DEFINITIONS = {
    "day": {"type": "string", "format": "date"},
    "unit": {"enum": ["C", "F"], "type": "string"},
    "tree": {"type": "object", "properties": {"unit": {"$ref": "#/properties/given"}}, "required": ["unit"]},
}
DAYS = {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]}
# The schema of a parameter, values that it allows, and values that it does not.
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "text": ({"type": "string"}, ["a", "12", "", " a\n b ", '"a"', "null"], []),
    "text by list": ({"type": ["string"]}, ["a", '"a"', "12"], []),
    "date or time": (DAYS, ["2026-01-31", "2024-02-29", "2026-01-31T10:20:30Z"], ["2026-02-30", '"2026-01-31"', "x"]),
    "const": ({"const": "5"}, ["5"], ["6", 5.5]),
    "const of a number": ({"const": 5}, [5], [6, "x"]),
    "enum": ({"enum": ["a", "b"]}, ["a", "b"], ["c", "", " a"]),
    "enum with newlines": ({"enum": ["\na\n", "b"]}, ["\na\n", "b"], ["a", "\na"]),
    "pattern": ({"type": "string", "pattern": "^[a-c]{1,3}$"}, ["a", "abc"], ["", "abcd", "a "]),
    "pattern inside": ({"type": "string", "pattern": "b|^c", "maxLength": 5}, ["abx", "c"], ["x", "xc"]),
    "length": ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "a\n猫b"], ["a", "abcde"]),
    "length as a float": ({"type": "string", "minLength": 2.0, "maxLength": 4.0}, ["ab", "abcd"], ["a", "abcde"]),
    "uuid": ({"type": "string", "format": "uuid"}, ["12345678-1234-1234-1234-1234567890ab"], ["1234", ""]),
    "unknown format": ({"type": "string", "format": "uri"}, ["x", ""], []),
    "reference": ({"$ref": "#/$defs/day"}, ["2026-01-31"], ["31.1.2026"]),
    "reference and more": ({"$ref": "#/$defs/unit", "pattern": "C"}, ["C"], ["F", "D"]),
    "all of": ({"allOf": [{"$ref": "#/$defs/unit"}, {"pattern": "F"}]}, ["F"], ["C"]),
    "text or null": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["a", None, "12"], []),
    "day or null": ({"anyOf": [{"$ref": "#/$defs/day"}, {"type": "null"}]}, [None], ["x"]),
    "number": ({"type": "integer", "minimum": 1}, [1, 20], [0, "x", 1.5]),
    "flag": ({"type": "boolean"}, [True, False], ["x", 1]),
    "true": ({"type": "boolean", "const": True}, [True], [False]),
    "anything": ({}, ["a", 1, {"a": [1]}, None], []),
    "list": ({"type": "array", "items": {"$ref": "#/$defs/unit"}, "maxItems": 2}, [[], ["C"]], [["x"], "x"]),
    "whole schema": ({"$ref": "#/$defs/tree"}, [{"unit": "C"}], [{"unit": "x"}, {}]),
    "recursion": (
        {"type": "array", "maxItems": 1, "items": {"$ref": "#"}},
        [[], [{"x": []}]],
        [[1], [[]], [{"given": "C"}]],
    ),
}


def tokenizer_of(name: str, *, special: bool) -> Tokenizer:
    backend = byte_level()
    tags = [mark for mark in FORMATS[name].syntax.marks if mark[0] == "<" and mark[-1] == ">"]
    marks = [AddedToken(mark, special=special, normalized=False) for mark in tags]
    backend.add_special_tokens(marks) if special else backend.add_tokens(marks)
    return Tokenizer(backend, {"eos_token": "</s>"})


def tool_of(schema: Any) -> dict[str, Any]:
    properties = {"given": {"enum": ["C"]}, "x": schema}
    parameters = {"type": "object", "properties": properties, "required": ["x"], "$defs": DEFINITIONS}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def satisfies(tool: dict[str, Any], arguments: Any) -> bool:
    schema = tool["function"]["parameters"]
    checker = jsonschema.FormatChecker(["date", "uuid"])
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(arguments)


class Family:
    """The grammar and the parser of a family of models, and how its templates write calls."""

    def __init__(self, name: str, *, special: bool = False) -> None:
        self.syntax = FORMATS[name].narrowed("<tool_call></tool_call>").syntax
        self.write = WRITERS[name]
        self.tokenizer = tokenizer_of(name, special=special)
        self.vocabulary = GrammarVocabulary(self.tokenizer, self.tokenizer.vocab_size, [1])
        self.special = {
            mark: token_id for mark, token_id in self.tokenizer.special_tokens.items() if mark in self.syntax.marks
        }

    def matcher(self, tool: dict[str, Any]) -> Any:
        source = CallGrammar(self.syntax, [tool], self.special).required(is_parallel=False)
        return compile_grammar(Grammar(GrammarKind.CALLS, source), self.vocabulary)

    def accepts(self, tool: dict[str, Any], arguments: dict[str, Any]) -> bool:
        token_ids = self.tokenizer.encode(self.write([("f", arguments)]).strip(), add_special_tokens=False)
        matcher = self.matcher(tool)
        return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()

    def read(self, tool: dict[str, Any], text: str) -> Any:
        machine = self.syntax.resolved(frozenset(self.special)).machine(ToolSchemas([tool]))
        [(name, arguments)] = calls_of(parse(machine, [text]))
        assert name == "f"
        return arguments

    def draw(self, tool: dict[str, Any], seed: int) -> str | None:
        """A call of random tokens that the masks allow; None if it has not ended in time."""
        matcher, chooser, token_ids = self.matcher(tool), random.Random(seed), []
        for _ in range(400):
            if matcher.is_accepting():
                shown = self.tokenizer.new_detokenizer(frozenset(self.special.values()))
                return "".join(map(shown.append, token_ids)) + shown.flush()
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            assert not matcher.is_error(), matcher.get_error()
            token_id = chooser.choice([bit for bit in range(self.tokenizer.vocab_size) if mask >> bit & 1])
            assert matcher.consume_token(token_id)
            token_ids.append(token_id)
        return None


@pytest.fixture(
    scope="module", params=[(name, special) for name in WITH_PARAMETERS for special in (False, True)], ids=str
)
def family(request: pytest.FixtureRequest) -> Family:
    name, special = request.param
    return Family(name, special=special)


@pytest.mark.parametrize("case", CASES)
def test_the_grammar_allows_what_the_schema_allows_and_the_parser_reads_it(family: Family, case: str):
    schema, right, wrong = CASES[case]
    tool = tool_of(schema)
    for value in right:
        assert satisfies(tool, {"x": value}), value
        assert family.accepts(tool, {"x": value}), value
        text = family.write([("f", {"x": value})])
        for mark in family.special:
            text = text.replace(mark, SHOWN + mark)
        assert family.read(tool, text) == {"x": value}
    for value in wrong:
        assert not family.accepts(tool, {"x": value}), value


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        if case not in ("text", "text by list", "anything", "text or null", "unknown format", "recursion")
    ],
)
def test_random_calls_satisfy_the_schema(family: Family, case: str):
    tool, num_read = tool_of(CASES[case][0]), 0
    for seed in range(8):
        text = family.draw(tool, seed)
        if text is not None:
            num_read += 1
            arguments = family.read(tool, text)
            assert satisfies(tool, arguments), (text, arguments)
    assert num_read > 2


@pytest.mark.parametrize(
    "limits",
    [
        {"minLength": 50},
        {"minLength": 1, "maxLength": 3000},
        {"minLength": 1500, "maxLength": 3000},
        {"pattern": "fox", "maxLength": 100_000},
    ],
    ids=str,
)
def test_long_texts_are_checked_within_the_limits_of_grammars(family: Family, limits: dict[str, Any]):
    tool, text = tool_of({"type": "string", **limits}), "The quick brown <fox>\n" * 100
    assert family.accepts(tool, {"x": text})
    assert family.accepts(tool, {"x": ""}) is False


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_a_value_never_contains_the_mark_behind_it(name: str):
    family = Family(name)
    mark = family.syntax.value_close
    tool = tool_of({"type": "string", "minLength": 30})
    assert not family.accepts(tool, {"x": f"a{mark}{'b' * 30}"})
    with pytest.raises(Unwritable, match="cannot write"):
        family.matcher(tool_of({"enum": ["a", f"b{mark}"]}))


@pytest.mark.parametrize("name", WITH_PARAMETERS)
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string", "not": {"const": "a"}}, "'not'"),
        ({"type": "string", "pattern": 3}, "pattern"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength 3 and maxLength 2"),
        ({"type": "string", "minLength": 1, "maxLength": 0}, "maxLength 0"),
        ({"type": "string", "maxLength": -1}, "maxLength -1"),
        ({"type": "string", "minLength": "a"}, "minLength 'a'"),
        ({"type": "string", "minLength": True}, "minLength True"),
        ({"type": "string", "maxLength": 1.5}, "maxLength 1.5"),
        ({"type": "string", "allOf": [{"type": "string", "enum": [1]}]}, "no string"),
        ({"type": "string", "allOf": [{"type": "string", "anyOf": [{"type": "integer"}]}]}, "no string"),
        ({"type": "string", "$ref": "#/$defs/none"}, "'#/$defs/none'"),
        ({"type": "string", "$ref": "#/properties/x"}, "contains itself"),
    ],
)
def test_schemas_of_strings_that_cannot_be_checked_are_named(name: str, schema: Any, reason: str):
    with pytest.raises(Unwritable) as caught:
        Family(name).matcher(tool_of(schema))
    assert reason in caught.value.reason


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_parameters_that_are_only_required_are_written(name: str):
    family = Family(name)
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "properties": {"a": {"type": "integer"}}, "required": ["b"],
        "additionalProperties": {"enum": ["C"]}}}}  # fmt: skip
    assert family.accepts(tool, {"a": 1, "b": "C"})
    assert not family.accepts(tool, {"a": 1})
    assert not family.accepts(tool, {"a": 1, "b": "D"})


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_further_parameters_have_their_schema(name: str):
    family = Family(name)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"additionalProperties": {"type": "integer"}}}}
    assert family.accepts(tool, {"a": 1, "b": 2})
    assert not family.accepts(tool, {"a": "x"})
    assert family.read(tool, family.write([("f", {"a": 1})])) == {"a": 1}


def test_arguments_are_the_models_own_characters():
    family = Family("glm")
    tool = tool_of({"type": "string", "maxLength": 9})
    assert json.dumps(family.read(tool, family.write([("f", {"x": "é\n猫"})])), ensure_ascii=False) == '{"x": "é\\n猫"}'
