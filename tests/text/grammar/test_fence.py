"""What one text must satisfy at once is counted before the library multiplies it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.fence import check_grammar, check_schema
from benchmarks.schemas.cases import FOLDER, cases
from tests.own_process import within_processor_time
from tests.text.grammar.made_schemas import make_schema


def patterns(count: int) -> list[dict[str, Any]]:
    """Schemas that together cost the library 2^count at a mask."""
    return [{"pattern": f"^(z*q|z{{40}}(.*)k{number}(.*))$"} for number in range(count)]


def check_lark(source: str) -> None:
    check_grammar(Grammar(GrammarKind.LARK, source))


ONE, TWO, THREE = patterns(1)[0], {"allOf": patterns(2)}, {"allOf": patterns(3)}
CHAIN = {"$defs": {str(n): {**ONE, "$ref": f"#/$defs/{n + 1}"} for n in range(2)} | {"2": ONE}, "$ref": "#/$defs/0"}
NODE = {
    "type": "object",
    "properties": {"name": ONE, "at": {"format": "date"}, "next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}},
}
# Its property must satisfy one more pattern at each level.
GROWING = {"properties": {"a": {"allOf": [{"$ref": "#/$defs/G"}, {"properties": {"a": ONE}}]}}}


@pytest.mark.parametrize(
    "schema",
    [
        THREE,
        {"type": "string", "allOf": patterns(24)},
        {"format": "date", **TWO},
        {"anyOf": [{"type": "null"}, {"allOf": [TWO, {"oneOf": [{}, ONE]}]}]},
        {"properties": {"a": {"items": {"additionalProperties": THREE}}}},
        {"patternProperties": {"^a": {"prefixItems": [{}, THREE]}}},
        {"allOf": [{"properties": {"a": one}} for one in patterns(3)]},
        {"properties": {"a": ONE}, "allOf": [{"items": ONE}], "anyOf": [{"$ref": "#/properties/a"}]},
        CHAIN,
        {"$id": "http://a/b", "$defs": {"a b/c": TWO}, **ONE, "$ref": "http://a/b#/$defs/a%20b~1c"},
        {"allOf": [{"$ref": "#/allOf/1"}, {"$ref": "#/x/0"}], **ONE, "x": [TWO]},
        {"$defs": {"A": {**ONE, "$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"},
        {"$defs": {"G": GROWING}, "$ref": "#/$defs/G"},
        {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]},
        {"multipleOf": 3, **ONE},
    ],
    ids=str,
)
def test_three_at_once_are_rejected(schema: Any):
    with pytest.raises(InvalidValue, match="must satisfy 3 or more of `pattern`, `format` and `multipleOf` at once"):
        check_schema(schema)
    with pytest.raises(InvalidValue, match="at most 2 are allowed"):
        check_lark(f'start: "&&" a\na: %json\n {json.dumps(schema)} // the end')


@pytest.mark.parametrize(
    "schema",
    [
        True,
        TWO,
        {"format": "date", **ONE},
        {"anyOf": patterns(40)},
        {"properties": {str(number): one for number, one in enumerate(patterns(40))}},
        {"properties": {"pattern": {"enum": [THREE]}, "format": {"const": THREE}}, "examples": [THREE]},
        {"$defs": {"N": NODE}, "$ref": "#/$defs/N"},
        {"$defs": {"N": NODE}, "type": "array", "items": {"allOf": [{"$ref": "#/$defs/N"}]}},
        {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}, "name": ONE}},
        {"multipleOf": 10_000},
        {"properties": {"a": {"multipleOf": 0.01}, "b": {"multipleOf": 0.25}, "c": {"multipleOf": 5000}}},
        {"$ref": "#/$defs/missing"},
    ],
    ids=str,
)
def test_two_at_once_and_what_holds_for_other_texts_are_accepted(schema: Any):
    check_schema(schema)


@pytest.mark.parametrize("number", [10_001, 49_999_991, 49_999_991.0, -20_000, 1e300, 9999.99999, 123.456])
def test_numbers_of_multiple_of_have_a_largest_sum(number: float):
    with pytest.raises(InvalidValue, match=r"`multipleOf`, without their decimal points, add up to .*add up to 10000"):
        check_schema({"items": {"multipleOf": number}})


def test_all_numbers_of_multiple_of_count():
    a, b, c = ({"multipleOf": 4000} for _ in range(3))
    with pytest.raises(InvalidValue, match="add up to 12000"):
        check_schema({"properties": {"a": a, "b": {"items": b}}, "$defs": {"c": c}})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$defs": {"a": {"$anchor": "b"}}, "$ref": "#b"}, "'#b' is no path in the schema"),
        ({"$ref": "http://a/b"}, "no path"),
        ({"$defs": {"a": {"$id": "http://a/b"}}, "$ref": "#/$defs/a"}, "leave out the `\\$id`"),
        ({"x": {"$id": "http://a/b", "a": {"$ref": "#/a"}}, "$ref": "#/x/a"}, "leave out the `\\$id`"),
    ],
)
def test_references_that_lead_elsewhere_than_their_path_are_rejected(schema: Any, words: str):
    with pytest.raises(InvalidValue, match=words):
        check_schema(schema)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("start: A\nA: " + " & ".join(f"/(?s:.*)k{n}(?s:.*)/" for n in range(41)), "40 times `&`; it may have 1"),
        ("start: A\nA: /a/ & B\nB: /b/i & /c/", "2 times `&`"),
        ("start: A\nA: ~(~/a/ | ~/b/)", "3 times `~`; it may have 2"),
        ('start: A // "\nA: /a/ & /b/ & /c/', "2 times `&`"),
        ('start: A # "\nA: /a\\/"/ & /b/ & "\\""', "2 times `&`"),
        ('start: %json {"a": }', "`%json` without JSON behind it"),
        ("start: %json " + "[" * 30_000, "`%json` without JSON behind it"),
    ],
    ids=lambda value: value[:40],
)
def test_lark_has_one_intersection_and_two_complements(source: str, words: str):
    with pytest.raises(InvalidValue, match=words):
        check_lark(source)


def test_signs_in_texts_and_comments_and_repetitions_are_not_counted():
    check_lark(
        'start: A "~&&" /&\\/&/ // & & ~\n# & & &\nA: "a"~2..3 & ~/b/ | ~ /c/ | "\\"&&" ~ 4\n b: %json {"&": "& & &"}'
    )


def test_what_people_and_stock_clients_send_is_accepted():
    for case in cases():
        check_schema(case.schema)
    for tool in (tool for chat in json.loads((FOLDER.parent / "tools.json").read_text()) for tool in chat["tools"]):
        check_schema(tool.get("parameters"))
    for seed in range(300):
        check_schema(make_schema(seed, is_bounded=seed % 2 == 0))


@pytest.mark.parametrize("name", ["references", "parts", "open texts", "schemas"])
def test_the_largest_grammar_is_counted_in_linear_time(name: str):
    """Of many times the length that a client may send."""
    assert within_processor_time(20, num_checked, name) == 1


def num_checked(name: str) -> int:
    many = range(20_000)
    if name == "references":  # each definition is known only after the next one
        check_schema({"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in many} | {"d20000": ONE}})
    elif name == "parts":
        check_schema({"allOf": [{"anyOf": [{"$ref": "#/$defs/a"}] * 10}] * 2, "$defs": {"a": {"items": [{}] * 20_000}}})
    elif name == "open texts":
        check_lark("start: A\n" + '/\\/"\\"' * 100_000)
    else:
        check_lark("start: A\n" + '%json {"a": 1}' * 100_000)
    return 1
