"""The hostile grammars of the isolation benchmark reach the compiler, each time as others."""

from __future__ import annotations

import pytest

from app.api.body.structured_output import SINGLE_FIELDS
from app.contract.grammar import StructuredOutputs
from app.text.grammar.grammar_sources import grammar_of, lark_source
from benchmarks.isolation.grammars import HOSTILE, WORD, hostile_field, nested_conditions


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_grammar_is_not_refused_before_its_costly_part(number: int):
    name, source = HOSTILE[number]
    outputs = StructuredOutputs(**{SINGLE_FIELDS[name]: source.replace(WORD, "9" * 12)})
    assert "9" * 12 in lark_source(grammar_of(outputs))


def test_nested_conditions_are_read_to_their_end():
    grammar = grammar_of(StructuredOutputs(json=nested_conditions()))
    assert WORD in grammar.source and '"then"' in grammar.source and len(nested_conditions()) < 1100


def test_each_one_is_different():
    assert all(WORD in source for _, source in HOSTILE)
    fields = [str(hostile_field()) for _ in range(30)]
    assert len(set(fields)) == 30 and not any(WORD in field for field in fields)
