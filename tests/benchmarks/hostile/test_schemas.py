"""Schemas made of genes: with every keyword, and references that lead to something."""

from __future__ import annotations

import json
import random

from app.text.grammar.schema_keywords import objects_in
from benchmarks.hostile.genes import Genes
from benchmarks.hostile.schemas import schema

KEYWORDS = (
    "maxLength", "pattern", "allOf", "enum", "multipleOf", "minItems", "properties", "anyOf", "oneOf", "$ref", "format",
    "if", "then", "else",
)  # fmt: skip


def test_schemas_have_every_keyword():
    text = json.dumps([schema(Genes((), random.Random(seed))) for seed in range(300)])
    assert all(f'"{keyword}"' in text for keyword in KEYWORDS)


def test_references_have_their_targets():
    for seed in range(100):
        made = schema(Genes((), random.Random(seed)), seed % 5)
        for target in {str(each["$ref"]) for each in objects_in(made) if "$ref" in each}:
            found = made
            for key in target.split("/")[1:]:
                found = found[key]
