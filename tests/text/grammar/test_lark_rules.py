"""Lark that can never be completed is rejected with a rule; what is not understood is left to the library."""

from __future__ import annotations

import pytest

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar, GrammarKind, StructuredOutputs
from app.text.grammar.compile import compile_grammar
from app.text.grammar.grammar_sources import grammar_of, rule_of
from app.text.grammar.lark_rules import check_lark, checked_lark
from tests.own_process import within_processor_time
from tests.text.grammar.test_compile import accepts, vocabulary

ENDLESS_SCHEMA = '{"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}'


@pytest.mark.parametrize(
    ("lark", "rule"),
    [
        ('start: x\nx: "a" x', "x"),
        ('start: "a" start', "start"),
        ("start: a\n// more\n\n | b // and more\na: a\nb: /[(]\\/+/ a", "a"),
        ('start: "b"? y+\ny: ("y" | z) y\nz: ["z"]', "y"),
        ('start: x{1,2} | x~2..3\nx: "a" x', "x"),
        ('?start: _inner -> name\n_inner.2: "a" !more\n!more: _inner', "_inner"),
        ('%ignore / /\nstart: T x\nT: /a/ & ~/b/\nx[suffix="]"]: T x', "x"),
        ("start: <[12]> @other start", "start"),
        (f"start: %json {ENDLESS_SCHEMA}", "start"),
        (f'start: x\nx: "b" %json {ENDLESS_SCHEMA}\n | x', "x"),
        ('start: %lark {\n start: x\n x: "a" x\n}', "start"),
        ('start: x::0\nx::_[capture]: "a" x::incr(_) %if lt([0:3], 5)', "x"),
        ('start: y :: 0x1F\ny::_: "a".."c" y::set_bit( 2 ) %if and(bit_clear(2), not (true())) | y::_', "y"),
    ],
)
def test_a_grammar_without_a_complete_text_is_rejected_with_a_rule(lark: str, rule: str):
    for check in (check_lark, lambda source: compile_grammar(Grammar(GrammarKind.LARK, source), vocabulary())):
        with pytest.raises(InvalidValue, match=f"never be completed: the rule '{rule}' has no") as caught:
            check(lark)
        assert caught.value.param == "grammar"
    with pytest.raises(InvalidValue, match="never be completed"):
        rule_of(grammar_of(StructuredOutputs(grammar=lark)))


@pytest.mark.parametrize(
    ("lark", "text"),
    [
        ('start: x\nx: "a" x | "b"', "aab"),
        ('start: x? "c"\nx: "a" x', "c"),
        ('start: [x] "c"\nx: "a" x', "c"),
        ('start: x{0,2} "c"\nx: "a" x', "c"),
        ('start: x* "c"\nx: ("a" x)+', "c"),
        ('start: (x | "b"\n | "c")\nx: "a" x', "b"),
        ('start: "a" | x\nx: "a" x', "a"),
        ('start: "x: x" | y\ny: y', "x: x"),
        ("start: /x|y: y/ | y\ny: y", "x"),
        ('start: %json {"type": ["object", "null"], "required": ["a"], "additionalProperties": {"$ref": "#"}}', "null"),
        ('start: %lark {\n start: "a" | start\n}', "a"),
        (
            'start: x::0\nx::_: "" %if is_ones([0:2])\n | ("a" x::set_bit(0) %if bit_clear(0))\n'
            ' | "b" x::set_bit(1) %if and(bit_clear(1), true)',
            "ba",
        ),
        ('start: "a".."c" %json {"oneOf": [{"type": "null"}]}', "bnull"),
        ('%llguidance {"no_forcing": true}\nstart: %regex {"substring_words": "a b"} "!"', "b!"),
    ],
)
def test_a_text_of_the_grammar_satisfies_it(lark: str, text: str):
    assert accepts(Grammar(GrammarKind.LARK, lark), text)


@pytest.mark.parametrize(
    ("schema", "text", "is_accepted"),
    [
        ('{"type": "array", "items": {"type": "null"}, "uniqueItems": false}', "[null]", True),
        ('{"title": "A", "type": "null", "format": "mine", "x-own": [{"a": 1}]}', "null", True),
        ('{"$ref": "#/components/a", "components": {"a": {"type": "null", "example": 5}}}', "null", True),
        ('{"properties": {"a": {"type": "null"}}, "required": ["a"]}', '{"a": null}', True),
        ('{"properties": {"a": {"type": "null"}}, "required": ["a"]}', '{"a": null, "b": 1}', False),
        ('{"properties": {"a": {"type": "null"}}, "required": ["a"]}', '{"a":\n null}', False),
        ('{"properties": {"a": {"type": "null"}}, "x-guidance": {"whitespace_pattern": "_"}}', '{_"a":_null}', True),
        ('{"type": "string", "format": "time"}', f'"01:02:03.{"4" * 20}Z"', False),
        ('{"const": "\\u007f"}', '"\\u007f"', True),
    ],
)
@pytest.mark.parametrize(
    "lark",
    ["start: %json {}", "start: x\nx: %lark {\n start: %json {}\n}",
     'start: x::0\nx::_: %json {} %if eq(_, 0) | "!" x::incr(_) %if lt(_, 2)'],
)  # fmt: skip
def test_json_in_lark_is_read_as_a_schema_alone(lark: str, schema: str, text: str, is_accepted: bool):
    grammar = Grammar(GrammarKind.LARK, lark.replace("{}", schema))
    assert accepts(grammar, text) is is_accepted
    beside = Grammar(GrammarKind.CALLS, f"start: {rule_of(grammar)}")
    assert accepts(beside, text) is is_accepted


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{"items": {"not": {"type": "null"}}}', r'^#/items/not is \{"type": "null"\}, which cannot be enforced'),
        ('{"not": {}}', "The schema is false, which no text satisfies"),
        (ENDLESS_SCHEMA, "The schema can never be completed: '#' requires a value of itself"),
        ('{"items": ' * 70 + "{}" + "}" * 70, "nested more than 32 levels deep"),
        ('{"const": "\\ud800"}', "a lone surrogate"),
    ],
    ids=lambda text: text[:30],
)
def test_a_schema_in_lark_is_rejected_as_one_alone_is(schema: str, words: str):
    with pytest.raises(InvalidValue, match=words) as caught:
        checked_lark(f'start: "a" | %json {schema}')
    assert caught.value.param == "grammar"


@pytest.mark.parametrize("depth", [200, 900, 5000])
def test_a_deep_value_in_a_schema_is_rejected(depth: int):
    schema = f'{{"const": {"[" * depth}{"]" * depth}}}'
    with pytest.raises(InvalidValue):
        compile_grammar(Grammar(GrammarKind.LARK, f"start: %json {schema}"), vocabulary())


@pytest.mark.parametrize(
    "lark",
    ["", "start", 'start: "a', "start: (", "start: x)\nx: x", "start: x::y\nx::_: x", "start: x %if y((\nx: x", "x: x",
     "%override start: x\nx: x\nstart: x", "start: %json {\nx: x", "start: " + "(" * 1000, "%lark {" * 20 + "start: x",
     "start: %lark { start: x\nx: x"],
)  # fmt: skip
def test_what_is_not_understood_counts_as_complete(lark: str):
    check_lark(lark)
    assert checked_lark(lark) == lark


@pytest.mark.parametrize(
    "lark",
    ['start: "a" ' + '"\\' * 32_000, "start: " + "(" * 64_000, "start: x " + "[" * 30_000 + "]" * 30_000, "//" * 32_000,
     "start: " + "/a" * 32_000, "start: x" + "\n\n |" * 16_000, "start: x\n" + "x: x\n" * 12_000, "%json {" * 9_000,
     "start: x %if " + "y(" * 30_000, "start: x %if y" + "()" * 30_000, "start: " + "x::y(" * 12_000,
     'start: %json {"a":' + "[" * 60_000, "start[" + '"' * 60_000, "start: " + "%json {}" * 8_000],
    ids=lambda text: str(text)[:20],
)  # fmt: skip
def test_the_check_is_linear(lark: str):
    within_processor_time(2, reason, lark)


def reason(lark: str) -> str | None:
    """Why a grammar is rejected, if it is."""
    try:
        checked_lark(lark)
    except InvalidValue as error:
        return error.message
    return None
