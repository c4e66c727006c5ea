"""The hundred schemas are what they are said to be: valid, most of them rich, and accepted by the grammar compiler."""

from __future__ import annotations

import json

import jsonschema

from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.compile import compile_grammar
from benchmarks.schemas.cases import FEATURES, cases, features
from tests.text.grammar.test_compile import vocabulary


def test_a_hundred_valid_schemas_with_names_of_their_own_compile():
    found = cases()
    assert len({case.name for case in found}) == len(found) == 100
    for case in found:
        jsonschema.Draft202012Validator.check_schema(case.schema)
        compile_grammar(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(case.schema)), vocabulary())


def test_at_least_40_nest_and_have_enums_patterns_bounded_strings_and_bounded_arrays():
    assert sum(features(case.schema) == FEATURES for case in cases()) >= 40


def test_features_are_those_of_keywords_not_of_names():
    assert features({"properties": {"enum": {"type": "string"}, "pattern": {"type": "null"}}}) == frozenset()
    inner = {"properties": {"a": {"enum": [1], "maxLength": 2}}}
    assert features({"items": inner, "maxItems": 2}) == {"nesting", "enum", "bounded string", "bounded array"}
