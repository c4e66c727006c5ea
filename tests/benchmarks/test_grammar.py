"""The benchmark of grammars: its schemas compile, hostile ones end, and figures without a limit are only reported."""

from __future__ import annotations

import pytest

from app.text.grammar.cache import GrammarCache
from app.text.grammar.grammar_sources import grammar_of, json_schema
from benchmarks.grammar import CASES, MIXTURE, Hostile, hostile_grammars, measure_hostile, verdicts_of
from benchmarks.limits import limits
from tests.text import toys


def cache() -> GrammarCache:
    """A cache with the vocabulary of a toy."""
    made, (text, _) = GrammarCache(), toys.toy("byte_level")
    made.load(text, text.vocab_size, (1,))
    return made


@pytest.mark.parametrize("name", MIXTURE)
def test_the_mixture_compiles(name: str):
    assert cache().lease(json_schema(MIXTURE[name])).grammar.source


@pytest.mark.parametrize("name", hostile_grammars())
def test_a_hostile_grammar_is_measured(name: str):
    wanted = hostile_grammars()[name]
    assert len(grammar_of(wanted).source) > 0
    assert measure_hostile(cache(), wanted).outcome


def test_cases_without_a_limit_are_not_judged():
    found = {case.name: [0.9] for case in CASES}
    verdicts = verdicts_of(found, {"guide": {"x": Hostile(1.0, 0.1, 0.1, "")}})
    missed = {verdict.limit.name for verdict in verdicts if verdict.is_missed}
    assert missed == set(limits("grammar"))
    assert len(verdicts) == len(CASES) - 1 + 3
