"""Grammars are compiled under limits, with our white space, and after reasoning behind up to two blanks."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar, GrammarKind, StructuredOutputs
from app.text.grammar import compile as compile_module
from app.text.grammar.compile import compile_grammar
from app.text.grammar.grammar_sources import MAX_CHOICES, grammar_of
from app.text.grammar.vocabulary import GrammarVocabulary
from tests.text import toys

TEXT, _ = toys.toy("byte_level")


@cache
def vocabulary() -> GrammarVocabulary:
    """The vocabulary of a byte-level tokenizer."""
    return GrammarVocabulary(TEXT, TEXT.vocab_size, [1])


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether a text satisfies a grammar."""
    matcher = compile_grammar(grammar, vocabulary())
    ids = TEXT.encode(text, add_special_tokens=False)
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


def schema(value: Any, **fields: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value), **fields)


PAIR = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("text", "expected"),
    [('{"a":1}', True), ('{"a": 1}', True), ('{ "a" : 1 }', True), ('{"a":  1}', False), ('{"a":\n1}', False)],
)
def test_there_is_at_most_one_space_at_each_place(text: str, expected: bool):
    assert accepts(schema(PAIR), text) is expected


def test_a_schemas_own_options_are_dropped():
    given = {**PAIR, "x-guidance": {"whitespace_flexible": True, "item_separator": ";"}}
    assert not accepts(schema(given), '{"a":\n1}') and accepts(schema(given), '{"a": 1}')


def test_one_of_is_any_of():
    union = {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}
    assert accepts(schema(union), '"ab"')


@pytest.mark.parametrize(("value", "text"), [(True, "[1, null]"), ({}, '{"x": 1}'), ({"enum": ["a", 2]}, "2")])
def test_any_schema_is_taken(value: Any, text: str):
    assert accepts(schema(value), text)


@pytest.mark.parametrize(
    ("blanks", "expected"), [("", True), ("\n", True), ("\n\n", True), (" \n", True), ("\n\n\n", False), ("?", False)]
)
@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (schema(PAIR, follows_reasoning=True), '{"a":1}'),
        (Grammar(GrammarKind.REGEX, "[ab]+c", True), "abc"),
        (Grammar(GrammarKind.CHOICE, '["yes", "no"]', True), "no"),
        (Grammar(GrammarKind.LARK, 'start: word "!"\nword: /[a-z]+/', True), "hey!"),
    ],
    ids=["schema", "regex", "choice", "lark"],
)
def test_after_reasoning_two_blanks_may_come_first(grammar: Grammar, text: str, blanks: str, expected: bool):
    assert accepts(grammar, blanks + text) is expected
    assert accepts(Grammar(grammar.kind, grammar.source), text)


BOTH = {"type": "string", "allOf": [{"pattern": f"^((.*a.{{{n}}})+)$"} for n in (60, 5)] + [{"pattern": "^(?s:.*)k$"}]}


@pytest.mark.parametrize("follows_reasoning", [False, True])
@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        ("regex", "(?<=a)b", "Look-around"),
        ("regex", r"(a)\1", "Backreferences"),
        ("regex", "a{2,1}", "repetition count"),
        ("regex", r"[^\s\S]", "No text satisfies"),
        ("lark", "start: b", "unknown name"),
        ("lark", 'start: "a', "lexer error"),
        ("lark", "", ""),
        ("json_schema", '{"type":"foo"}', "Invalid type"),
        ("json_schema", '{"not":{"const":1}}', "cannot be enforced"),
        ("json_schema", "false", "no text satisfies"),
        ("lark", 'start: "a" start', "can never be completed: the rule 'start'"),
        ("lark", 'start: "a"{1000000}', "too long, or never ends"),
        ("lark", 'start: "a"{0,4294967296}', "at most 2147483647 repetitions"),
        ("lark", "start: /a{4294967296}/", "at most 4294967295 are allowed"),
        ("regex", "a{4294967296}", "at most 4294967295 are allowed"),
        ("regex", "a{1000000}", "too complex"),
        ("regex", r"(\w)|(|\d|\w)|()+", "library fails at it"),
        ("lark", f"start: %json {json.dumps(BOTH)}", "Its regular expressions are too complex"),
        ("lark", "start: T\nT: " + " & ~".join(f"/(.*a.{{{n}}}b.*)/" for n in range(3, 33)), "are too complex"),
        ("json_schema", '{"type":"string","maxLength":4294967296}', "at most 4294967295 are allowed"),
        ("json_schema", '{"type":"integer","minimum":1e40}', "at most 18 digits"),
        ("json_schema", '{"type":"number","maximum":1e308}', "at most 18 digits"),
        ("json_schema", '{"type":"number","minimum":1e-300}', "too many digits"),
    ],
)
def test_rejections_say_why_in_one_line(kind: str, source: str, words: str, follows_reasoning: bool):
    with pytest.raises(InvalidValue) as caught:
        compile_grammar(Grammar(GrammarKind(kind), source, follows_reasoning), vocabulary())
    assert words in caught.value.message and "\n" not in caught.value.message, caught.value.message


def test_sizes_are_limited():
    many = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(401)}}
    with pytest.raises(InvalidValue, match="401 properties"):
        compile_grammar(schema(many), vocabulary())
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(33):
        deep = {"type": "array", "items": deep}
    compile_grammar(schema(deep), vocabulary())
    for _ in range(33):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidValue, match="more than 32"):
        compile_grammar(schema(deep), vocabulary())


def test_local_recursion_is_allowed():
    tree = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    }
    assert accepts(schema(tree), '{"next":{"next":{"next":null}}}')


@pytest.mark.parametrize(
    ("source", "text"),
    [(r"\n\n\n", "\n\n\n"), (r"   [ab]", "   a"), (r"[ \n]*", ""), (r" ?", " "), (r" +a", "  a"), (r"  ", "  ")],
)
def test_an_answer_after_reasoning_may_begin_with_blanks_itself(source: str, text: str):
    assert accepts(Grammar(GrammarKind.REGEX, source, True), text)


@pytest.mark.parametrize("source", [r"\n[^\s\S]", r"  \n[^\s\S]", r"[ \n]*[^\s\S]"])
def test_blanks_before_nothing_are_no_answer(source: str):
    for follows_reasoning in (False, True):
        with pytest.raises(InvalidValue, match="No text satisfies"):
            compile_grammar(Grammar(GrammarKind.REGEX, source, follows_reasoning), vocabulary())


@pytest.mark.parametrize("follows_reasoning", [False, True])
def test_as_many_choices_as_may_be_sent_can_be_answered(follows_reasoning: bool):
    choices = [f"{number} words" for number in range(MAX_CHOICES)]
    grammar = replace(grammar_of(StructuredOutputs(choice=choices)), follows_reasoning=follows_reasoning)
    for choice in (choices[0], choices[-1]):
        assert accepts(grammar, choice) and not accepts(grammar, choice[:-1])


@pytest.mark.parametrize("blanks", ["", "\n\n"])
def test_a_long_text_may_follow_reasoning(blanks: str):
    """The work on it is done while it is compiled, under the larger limit."""
    text = "hello world and all the others " * 1000
    matcher = compile_grammar(Grammar(GrammarKind.REGEX, text, True), vocabulary()).deep_copy()
    for token_id in TEXT.encode(blanks + "hello world", add_special_tokens=False):
        matcher.compute_bitmask()
        assert matcher.consume_token(token_id) and not matcher.is_error(), matcher.get_error()


def test_what_cannot_go_on_behind_the_blanks_after_reasoning_is_rejected():
    many = "start: " + " | ".join(f'"w{number}"' for number in range(400))
    with pytest.raises(InvalidValue, match="too many alternatives"):
        compile_grammar(Grammar(GrammarKind.LARK, many, True), vocabulary())


@pytest.mark.parametrize("source", ["a+", r"\n\na"])
def test_a_grammar_after_reasoning_is_compiled_once(monkeypatch: pytest.MonkeyPatch, source: str):
    bodies = []
    body = compile_module._body
    monkeypatch.setattr(compile_module, "_body", lambda grammar: bodies.append(grammar) or body(grammar))
    compile_grammar(Grammar(GrammarKind.REGEX, source, True), vocabulary())
    assert len(bodies) == 1


@pytest.mark.parametrize("choice", ['"', "\\", "\n", "/", "a|b", "ä🙂", "\t", "\x7f", "\x80", "\u2028", "\0", r"\x7f"])
def test_choices_may_have_any_character(choice: str):
    grammar = grammar_of(StructuredOutputs(choice=[choice, "other"]))
    assert accepts(grammar, choice) and accepts(grammar, "other") and not accepts(grammar, choice + "x")
