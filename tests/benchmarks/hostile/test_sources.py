"""Grammars made of genes: the same ones again, many kinds, of a size that a request may have, and mostly valid."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from app.contract.errors import InvalidValue
from app.contract.grammar import StructuredOutputs
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.trial import GrammarLimits
from app.text.grammar.grammar_sources import grammar_of
from benchmarks.hostile.genes import Genes
from benchmarks.hostile.outcomes import outcomes
from benchmarks.hostile.patterns import MAX_CHARS
from benchmarks.hostile.sources import LANGUAGES, gbnf, request
from tests.text.grammar.children.trials import forking, tried

NUM_TRIED = 30


def made(language: str, count: int = 300) -> list[dict[str, Any]]:
    source = random.Random(1)
    return [request(language, Genes((), source), 5) for _ in range(count)]


@pytest.mark.long
@pytest.mark.parametrize("language", LANGUAGES)
def test_requests_are_many_and_can_be_made_again(language: str):
    genes = Genes((), random.Random(1))
    first = request(language, genes, 5)
    assert request(language, Genes(genes.taken, random.Random(2)), 5) == first
    texts = {json.dumps(fields) for fields in made(language)}
    assert len(texts) > 200, "many grammars of a few genes are alike"
    assert max(map(len, texts)) < 4 * MAX_CHARS
    assert {"logit_bias" in text for text in texts} == {True, False}


def test_rules_that_are_named_exist():
    for seed in range(100):
        text = gbnf(Genes((), random.Random(seed)))
        names = {line.partition("::=")[0].strip() for line in text.splitlines()}
        plain = re.sub(r'"(\\.|[^"\\])*"|\[[^]]*\]', " ", text)
        assert set(re.findall(r"\br\d+\b", plain)) <= names


@pytest.mark.long
@pytest.mark.parametrize("language", LANGUAGES)
def test_most_grammars_are_valid(language: str):
    """What is accepted, or costs too much: a mistake of the generator would leave nothing to search for."""
    with forking(GrammarLimits(cpu_s=0.05, wall_s=600)) as client:
        found = outcomes(error_of(client, fields) for fields in made(language, NUM_TRIED))
    assert found.num_accepted + sum(found.limits.values()) >= 0.6 * NUM_TRIED, found.reasons


def error_of(client: ForkClient, fields: dict[str, Any]) -> str:
    """Why the grammar of a request is rejected, if it is."""
    schema = fields.get("response_format", {}).get("json_schema", {}).get("schema")
    try:
        grammar = grammar_of(StructuredOutputs(json=schema, regex=fields.get("regex"), grammar=fields.get("grammar")))
    except InvalidValue as error:
        return error.message
    verdict, ended = tried(client, grammar)
    return ended.limit or (verdict and verdict.rejection) or ""
