"""Grammars made of genes: the same ones again, many kinds, of a size that a request may have."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from benchmarks.hostile.genes import Genes
from benchmarks.hostile.sources import LANGUAGES, MAX_CHARS, gbnf, lark, regex, request, schema

KEYWORDS = (
    "maxLength", "pattern", "allOf", "enum", "multipleOf", "minItems", "properties", "anyOf", "oneOf", "$ref", "format",
    "if", "then", "else",
)  # fmt: skip


def made(language: str, count: int = 300) -> list[dict[str, Any]]:
    source = random.Random(1)
    return [request(language, Genes((), source), 5) for _ in range(count)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_requests_are_many_and_can_be_made_again(language: str):
    genes = Genes((), random.Random(1))
    first = request(language, genes, 5)
    assert request(language, Genes(genes.taken, random.Random(2)), 5) == first
    texts = {json.dumps(fields) for fields in made(language)}
    assert len(texts) > 200, "many grammars of a few genes are alike"
    assert max(map(len, texts)) < 4 * MAX_CHARS
    assert {"logit_bias" in text for text in texts} == {True, False}


def test_schemas_have_every_keyword():
    text = json.dumps(made("schema"))
    assert all(f'"{keyword}"' in text for keyword in KEYWORDS)
    assert all(schema(Genes((), random.Random(seed)))["$defs"]["d"] for seed in range(20)), "$ref has its target"


def test_regular_expressions_are_such():
    """Apart from classes that only the library's syntax knows."""
    texts = [regex(Genes((), random.Random(seed))) for seed in range(300)]
    readable = [text for text in texts if r"\p" not in text and "{" not in text]
    assert len(readable) > 50
    for text in readable:
        re.compile(text)


def test_rules_that_are_named_exist():
    for seed in range(100):
        for text, sign in ((gbnf(Genes((), random.Random(seed))), "::="), (lark(Genes((), random.Random(seed))), ":")):
            names = {line.partition(sign)[0].strip() for line in text.splitlines()}
            plain = re.sub(r'"(\\.|[^"\\])*"|/(\\.|[^/\\])*/|%json .*|\[[^]]*\]', " ", text)
            assert set(re.findall(r"\b[rT]\d+\b", plain)) <= names
