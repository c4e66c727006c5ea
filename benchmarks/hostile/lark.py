"""Grammars in Lark made of genes: as the library reads it, with what costs most there.

Most of them are valid, or a search would learn nothing about their cost: names lead to what there is, each rule has an
alternative that ends, terminals consist of later ones only, and a grammar without room for more comes to an end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks.hostile.genes import Genes
from benchmarks.hostile.patterns import (
    COUNTS,
    LETTERS,
    MAX_CHARS,
    SMALL,
    alternatives,
    is_deep,
    pattern,
    regex,
    repeated,
)
from benchmarks.hostile.schemas import schema

OPTIONS = ('"no_forcing": true', '"ignore_once": true', '"allow_initial_skip": true')
TOKENS = ("<[*]>", "<[0-200]>", "<[^0-99]>", "<[30,40-50,60]>")
LAZY = ("lazy", 'suffix="a"', "suffix=/[a-z]+/", 'stop="z"', 'stop=""', "max_tokens=3", "max_tokens=50,lazy")
KEPT = ("capture", "temperature=0.5", "temperature=0.5,max_tokens=20")
IGNORED = (r"[ \t]+", "[a-z]", "(.*a.{9})+")
MAX_BITS = 64
END_BYTES = 150
"""The most that the definitions of one number take whose bodies are short."""
INNER_DEPTH = 4
"""The depth from which on a grammar is inside another one: with fewer rules, and none inside it."""


def lark(genes: Genes, depth: int = 0) -> str:
    """Return a grammar in Lark."""
    is_inside = depth >= INNER_DEPTH
    count = min(genes.of(SMALL), 3 if is_inside else 60)
    room = (MAX_CHARS // 20 if is_inside else MAX_CHARS) - count * END_BYTES
    lines = []
    if genes.below(3) == 0:
        lines.append(f"%ignore /{genes.of(IGNORED)}/")
    if genes.below(3) == 0:
        lines.append(f"%llguidance {{{genes.of(OPTIONS)}}}")
    for name, body, end in _definitions(genes, count, depth):
        room -= len(body.encode())
        lines.append(f"{name}: {body if room > 0 else end}")
    return "\n".join(lines)


def _definitions(genes: Genes, count: int, depth: int) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each rule and terminal, its body, and one that is short."""
    yield "start", alternatives(genes, lambda: _element(genes, count, depth)), "r0"
    for number in range(count):
        yield f"r{number}", _rule(genes, count, depth), '"a"'
        yield f"T{number}", _terminal(genes, number, count), '"a"'
        yield f"l{number}[{genes.of(LAZY + KEPT)}]", f"T{genes.below(count)}", '"a"'
        yield f"p{number}::_", _counted(genes, number), f'"a" | "b" p{number}::_'


def _rule(genes: Genes, count: int, depth: int) -> str:
    end = genes.of(('""', '"a"', '"b"', "/[a-z]+/"))
    return f"{end} | {alternatives(genes, lambda: _element(genes, count, depth + 1))}"


def _element(genes: Genes, count: int, depth: int) -> str:
    """Return a part of a rule, of a grammar with so many rules and terminals of each kind."""
    if is_deep(genes, depth):
        return f"T{genes.below(count)}"
    match genes.below(12):
        case 0:
            return json.dumps(genes.of(LETTERS), ensure_ascii=False)
        case 1 | 2:
            return f"T{genes.below(count)}{_times(genes)}"
        case 3 | 4:
            return f"r{genes.below(count)}{_times(genes)}"
        case 5:
            return f"l{genes.below(count)}"
        case 6:
            return f"p{genes.below(count)}::{genes.of((0, 1, 2**20 - 1))}"
        case 7 | 8:
            return f"({alternatives(genes, lambda: _element(genes, count, depth + 2))}){_times(genes)}"
        case 9:
            return f"%json {json.dumps(schema(genes, max(depth, 3)))}"
        case 10:
            return f"%lark {{\n{lark(genes, INNER_DEPTH)}\n}}" if depth < INNER_DEPTH else genes.of(TOKENS)
        case _:
            return f"/{_slashed(regex(genes, 3))}/"


def _times(genes: Genes) -> str:
    return genes.of(("", "", "*", "+", "?", repeated(genes)))


def _terminal(genes: Genes, number: int, count: int) -> str:
    """Return the body of the terminal of a number."""
    later = f"T{genes.below(count - number - 1) + number + 1}" if number + 1 < count else '"a"'
    match genes.below(8):
        case 0 | 1:
            sign = genes.of((" & ", " & ~", " | "))
            return sign.join(f"/{_slashed(pattern(genes, place))}/" for place in range(genes.of(SMALL)))
        case 2:
            return f"({later} | /{_slashed(regex(genes, 4))}/){repeated(genes)}"
        case 3:
            return f"/(?s:.*)/ & ~({later} | /{_slashed(pattern(genes, number))}/)"
        case 4:
            letters = "".join(genes.of(LETTERS) for _ in range(genes.of(SMALL)))
            kind = genes.of(("substring_chars", "substring_words"))
            return f"%regex {json.dumps({kind: letters * (1 + genes.of(COUNTS) // len(letters))})}"
        case 5:
            return json.dumps(genes.of(LETTERS) * (number + 1), ensure_ascii=False)
        case 6:
            return f'{later} "{number}" | {later} {later}'
        case _:
            return f"/{_slashed(regex(genes, 3))}/"


def _counted(genes: Genes, number: int) -> str:
    """Return the body of a rule with a number that its own parts change: what has come, or how often."""
    name, count = f"p{number}", min(genes.of(SMALL), MAX_BITS)
    texts = [json.dumps(genes.of(LETTERS), ensure_ascii=False) for _ in range(min(count, 8))]
    if genes.below(2):
        most, inner = genes.of(COUNTS), f"{name}::incr([0:16])"
        again = genes.of((f"{inner} {texts[0]}", f"{texts[0]} {inner}", f"{inner} {texts[0]} {inner}"))
        return f'"" | {again} %if lt([0:16], {most})'
    all_set, parts = f"is_ones([0:{count}])", []
    for bit in range(count):
        text, inner = texts[bit % len(texts)], f"{name}::set_bit({bit})"
        parts.append(f"{genes.of((f'{text} {inner}', f'{inner} {text}'))} %if bit_clear({bit})")
    return " | ".join([f'"" %if {genes.of(("true", all_set))}', *parts])


def _slashed(pattern: str) -> str:
    return pattern.replace("/", "\\/").replace("\n", "\\n")
