"""Grammars in Lark made of genes: with every costly feature of the library, names that exist, and within their size."""

from __future__ import annotations

import random
import re

import pytest

from app.text.grammar.lark_rules import check_lark
from benchmarks.hostile.genes import Genes
from benchmarks.hostile.lark import LAZY, lark
from benchmarks.hostile.patterns import MAX_CHARS

FEATURES = (
    "%json {", "%lark {", "%regex {", "%ignore /", "%llguidance {", " & /", " & ~", "/(?s:.*)/ & ~(", "){60}", "<[*]>",
    "::incr(", "::set_bit(", "%if lt(", *LAZY,
)  # fmt: skip


def made(count: int) -> list[str]:
    return [lark(Genes((), random.Random(seed))) for seed in range(count)]


def test_grammars_have_every_costly_feature():
    text = "\n".join(made(200))
    assert [feature for feature in FEATURES if feature not in text] == []


def test_rules_and_terminals_that_are_named_exist():
    """Outside of grammars in grammars, whose names are their own."""
    seen = 0
    for text in made(200):
        plain = re.sub(r'"(\\.|[^"\\])*"|/(\\.|[^/\\])+/|<[^>]*>', " ", text)
        if "%lark" not in text:
            names = set(re.findall(r"^(\w+)(?:::_|\[[^]]*\])?:", plain, re.MULTILINE))
            assert set(re.findall(r"\b[rTlp]\d+\b", plain)) <= names
            seen += 1
    assert seen > 20


@pytest.mark.long
def test_grammars_end_and_are_no_larger_than_is_allowed():
    for text in made(200):
        assert len(text.encode()) < MAX_CHARS
        check_lark(text)
