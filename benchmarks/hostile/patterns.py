"""Regular expressions made of genes, and what the other languages need for theirs."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.hostile.genes import Genes

COUNTS = (0, 1, 1, 2, 2, 3, 5, 8, 20, 60, 200, 1000, 5000)
SMALL = (1, 1, 2, 2, 3, 4, 6, 10, 24, 60)
LETTERS = ("a", "b", "z", "zz", "q", "é", "日", "🙂", "word ", '"', "\\", "\n")
CLASSES = ("[a-z]", "[^q]", ".", r"\w", r"\d", r"[\x00-\x7f]", r"\p{L}", r"[а-я]", "(?s:.)", r"\S")
MAX_DEPTH = 6
MAX_CHARS = 60_000


def is_deep(genes: Genes, depth: int) -> bool:
    """Return whether what is made at a depth is to have no parts."""
    return depth >= MAX_DEPTH or genes.is_long


def regex(genes: Genes, depth: int = 0) -> str:
    """Return a regular expression."""
    if is_deep(genes, depth):
        return genes.of(CLASSES)
    match genes.below(9):
        case 0:
            return _quoted(genes.of(LETTERS))
        case 1:
            return genes.of(CLASSES)
        case 2:
            return f"({'|'.join(regex(genes, depth + 1) for _ in range(genes.of(SMALL)))})"
        case 3:
            return f"({regex(genes, depth + 1)}){genes.of(('*', '+', '?'))}"
        case 4:
            return f"({regex(genes, depth + 1)}){repeated(genes)}"
        case 5:
            return f"({genes.of(CLASSES)}*{_quoted(genes.of(LETTERS))}{genes.of(CLASSES)}{repeated(genes)})"
        case 6:
            part = regex(genes, depth + 2)
            return "".join(f"({part}){number}" for number in range(min(genes.of(SMALL), MAX_CHARS // (len(part) + 4))))
        case 7:
            return f"(?i:{regex(genes, depth + 1)})"
        case _:
            return "".join(regex(genes, depth + 1) for _ in range(genes.of(SMALL)))


def pattern(genes: Genes, number: int) -> str:
    """Return a pattern that is unlike those of other numbers: where one text must match many, they must differ."""
    match genes.below(4):
        case 0:
            return f"(?s:.*)k{number}(?s:.*)"
        case 1:
            return f"z*q|z{{{genes.of(SMALL)}}}(.*)k{number}(.*)"
        case 2:
            return f"(.*a.{{{number + genes.of(SMALL)}}})+"
        case _:
            return f"({regex(genes, 3)}|k{number})*"


def repeated(genes: Genes) -> str:
    """Return how often something comes, as it is written behind it in each language but schemas."""
    least = genes.of(SMALL)
    return genes.of((f"{{{least}}}", f"{{{least},}}", f"{{{least},{least + genes.of(COUNTS)}}}"))


def alternatives(genes: Genes, element: Callable[[], str]) -> str:
    """Return some alternatives of some elements each, as GBNF and Lark write them."""
    parts = [" ".join(element() for _ in range(min(genes.of(SMALL), 6))) for _ in range(min(genes.of(SMALL), 10))]
    return " | ".join(parts)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\")
