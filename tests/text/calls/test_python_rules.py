"""Calls in Python: what the grammar allows beyond what it has in common with the other families."""

from __future__ import annotations

from typing import Any

import llguidance
import pytest

from app.text.calls.call_grammar import CallGrammar
from app.text.calls.formats import FORMATS
from app.text.calls.tool_schemas import Unwritable
from tests.text.answer.answers import AS_PYTHON, WRITERS
from tests.text.toys import toy

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
    grammar = CallGrammar(FORMATS[name], [tool], {}).required(is_parallel=False)
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
