"""Regular expressions made of genes."""

from __future__ import annotations

import random
import re

from benchmarks.hostile.genes import Genes
from benchmarks.hostile.patterns import pattern, regex


def test_regular_expressions_are_such():
    """Apart from classes that only the library's syntax knows."""
    texts = [regex(Genes((), random.Random(seed))) for seed in range(300)]
    readable = [text for text in texts if r"\p" not in text and "{" not in text]
    assert len(readable) > 50
    for text in readable:
        re.compile(text)


def test_patterns_of_different_numbers_differ():
    for kind in range(4):
        genes = [kind] + [7] * 2000
        assert len({pattern(Genes(genes, random.Random(1)), number) for number in range(9)}) == 9
