"""Numbers of JSON end behind 20 digits, unless their schema needs more; strings do not."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.text.answer.answer_format import AnswerFormat
from app.text.calls.formats import FORMATS
from app.text.grammar.compile import compile_grammar
from app.text.grammar.number_digits import MAX_DIGITS, MAX_EXPONENT_DIGITS, NumberDigits
from app.text.grammar.row_mask import RowMask
from tests.text.answer.test_tool_use import read, tool
from tests.text.grammar.test_compile import TEXT, schema, vocabulary

TOKENS = [b"1", b"22", b"333", b"4,", b".", b",", b"e", b"x", b'"', b"-", b"+", b"", b"55555555555555555555555"]
EOS = 1
OPEN = {"type": "integer"}
LONG = "1" + "0" * 29


@cache
def one_byte() -> dict[bytes, int]:
    tokens = [TEXT.token_bytes(token_id) for token_id in range(TEXT.vocab_size)]
    return {token: token_id for token_id, token in reversed(list(enumerate(tokens))) if len(token) == 1}


def row_of(grammar: Grammar) -> RowMask:
    matcher = compile_grammar(grammar, vocabulary()).deep_copy()
    return RowMask(Constraint(grammar), matcher, (), vocabulary().digits)


def bits_of(row: RowMask) -> int:
    """The tokens that a sequence may have next, as bits."""
    assert row.matcher is not None
    mask = bytearray(row.matcher.compute_bitmask())
    assert not row.matcher.is_error()
    row.limit(memoryview(mask).cast("I"), row.end)
    return int.from_bytes(mask, "little")


def allowed(grammar: Grammar, text: str) -> set[str]:
    """The characters that an answer may go on with; an empty one where it may end."""
    row = row_of(grammar)
    for byte in text.encode():
        row.take(one_byte()[bytes([byte])])
    bits = bits_of(row)
    found = {chr(byte[0]) for byte, token_id in one_byte().items() if bits >> token_id & 1 and byte[0] < 128}
    return found | ({""} if bits >> EOS & 1 else set())


def has_digit(grammar: Grammar, text: str) -> bool:
    return any(character.isdigit() for character in allowed(grammar, text))


@pytest.mark.parametrize(
    ("given", "before", "most"),
    [
        ({"type": "integer"}, "", MAX_DIGITS),
        ({"type": "integer"}, "-", MAX_DIGITS),
        ({"type": "integer", "minimum": 5}, "", MAX_DIGITS),
        ({"type": "integer", "maximum": -5}, "-", MAX_DIGITS),
        ({"type": "number"}, "", MAX_DIGITS),
        ({"type": "number"}, "17.", MAX_DIGITS),
        ({"type": "number"}, "-1e", MAX_EXPONENT_DIGITS),
        ({"type": "number"}, "1.5E-", MAX_EXPONENT_DIGITS),
        ({"type": "number", "minimum": 0, "maximum": 2}, "1.", MAX_DIGITS),
        ({"type": "number", "exclusiveMinimum": 0.5}, "0.", MAX_DIGITS),
        ({"type": ["null", "integer"]}, "", MAX_DIGITS),
        ({"anyOf": [OPEN, {"type": "string"}]}, "", MAX_DIGITS),
        ({"type": "array", "items": OPEN}, "[1, ", MAX_DIGITS),
        ({"type": "object", "properties": {"a": OPEN, "b": OPEN}}, '{"a": ', MAX_DIGITS),
        ({"type": "object"}, '{"any": [', MAX_DIGITS),
        ({}, "", MAX_DIGITS),
    ],
    ids=str,
)  # fmt: skip
def test_a_number_has_so_many_digits_in_a_row(given: dict[str, Any], before: str, most: int):
    text = before + "9" * (most - 1)
    assert has_digit(schema(given), text)
    assert not has_digit(schema(given), f"{text}9") and allowed(schema(given), f"{text}9")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"const": int(LONG)}, LONG),
        ({"enum": [1, int(LONG)]}, LONG),
        ({"type": "string"}, f'"{LONG}"'),
        ({"type": "string", "minLength": 28}, f'"{LONG}"'),
        ({"type": "string", "pattern": "^[0-9]+$"}, f'"{LONG}"'),
        ({"type": "string", "pattern": "^[0-9]{30}$"}, f'"{LONG}"'),
        ({"type": "string", "maxLength": 30}, f'"{LONG}"'),
        ({"enum": [LONG]}, f'"{LONG}"'),
        ({"type": "object"}, f'{{"{LONG}": "{LONG}"}}'),
        ({"type": "array", "items": {"type": "string"}}, f'["{LONG}", "1e{LONG}"]'),
    ],
    ids=str,
)
def test_what_a_schema_needs_and_what_a_string_has_stay_possible(given: dict[str, Any], text: str):
    for index in range(len(text)):
        assert text[index] in allowed(schema(given), text[:index]), text[:index]


@pytest.mark.parametrize("name", ["hermes", "mistral", "qwen3_coder", "pythonic"])
def test_arguments_of_calls_have_such_numbers(name: str):
    format_ = FORMATS[name].narrowed("<tool_call>")
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    grammar = read([tool(parameters=parameters)], "required", calls=format_).grammar(AnswerFormat(format_))
    row, digit, count = row_of(grammar), one_byte()[b"9"], 0
    while count < MAX_DIGITS:  # a digit wherever one is possible
        bits = bits_of(row)
        count = count + 1 if bits >> digit & 1 else 0
        row.take(digit if count else (bits & -bits).bit_length() - 1)
    assert bits_of(row) and not bits_of(row) >> digit & 1


@pytest.mark.parametrize(
    "lark", ['start: "n=" %json {"type": "integer"}', 'start: %lark {\n start: "n=" x\n x: %json {"type": "number"}\n}']
)
def test_json_in_lark_has_such_numbers(lark: str):
    grammar = Grammar(GrammarKind.LARK, lark)
    text = f"n={'9' * (MAX_DIGITS - 1)}"
    assert has_digit(grammar, text) and not has_digit(grammar, f"{text}9") and allowed(grammar, f"{text}9")


@pytest.mark.parametrize("kind", [GrammarKind.REGEX, GrammarKind.LARK])
def test_other_grammars_mean_what_they_say(kind: GrammarKind):
    source = "[0-9]+" if kind is GrammarKind.REGEX else "start: /[0-9]+/"
    assert has_digit(Grammar(kind, source), LONG)


def limited(end: bytes, *tokens: bytes) -> set[bytes]:
    """Which of some tokens may follow the end of a text."""
    bits = sum(1 << TOKENS.index(token) for token in tokens)
    mask = bytearray(bits.to_bytes(4, "little"))
    NumberDigits(TOKENS).limit(memoryview(mask).cast("I"), end)
    return {token for index, token in enumerate(TOKENS) if int.from_bytes(mask, "little") >> index & 1}


def test_a_token_has_no_more_digits_than_are_left():
    every = (b"1", b"22", b"333", b"4,", b".", b",", b"e")
    ends = {b".", b",", b"e"}
    assert limited(b"8" * 17, *every) == set(every)
    assert limited(b"8" * 18, *every) == {b"1", b"22", b"4,"} | ends
    assert limited(b"8" * 19, *every) == {b"1", b"4,"} | ends
    assert limited(b"8" * 20, *every) == limited(b"8" * 22, *every) == ends
    assert limited(b"0.5e12", *every) == {b"1", b"4,"} | ends
    assert limited(b"8", b"1", TOKENS[-1], b",") == {b"1", b","}
    assert limited(b"8" * 22, b"1", b"22") == {b"1", b"22"}
    assert limited(b"8" * 22, b"1", b",", b"x") == {b"1", b",", b"x"}
    assert limited(b"8" * 22, b"1", b",", b'"') == {b"1", b",", b'"'}


def test_the_end_of_a_text_is_long_enough_for_its_last_number():
    digits, end = NumberDigits(TOKENS), b""
    for token in (b'"', b"e", b"-", *[b"1"] * MAX_DIGITS):
        end = digits.behind(end, TOKENS.index(token))
    assert end == b"e-" + b"1" * MAX_DIGITS
