"""Grammars made of genes, in each language that a request may write one in, with the request that asks for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.hostile.genes import Genes
from benchmarks.hostile.lark import lark
from benchmarks.hostile.patterns import LETTERS, MAX_CHARS, SMALL, alternatives, is_deep, regex, repeated
from benchmarks.hostile.schemas import schema


def gbnf(genes: Genes) -> str:
    """Return a grammar in GBNF."""
    count = genes.of(SMALL)
    names = ("root", *(f"r{number}" for number in range(count)))
    return "\n".join(f"{name} ::= {alternatives(genes, lambda: _element(genes, count, 0))}" for name in names)


def _element(genes: Genes, num_rules: int, depth: int) -> str:
    if is_deep(genes, depth):
        return '"a"'
    match genes.below(6):
        case 0:
            return json.dumps(genes.of(LETTERS), ensure_ascii=False)
        case 1:
            return genes.of(("[a-z]", "[^q]", "[0-9a-f]", "[^\\x00-\\x1f]"))
        case 2:
            return f"r{genes.below(num_rules)}"
        case 3:
            inner = alternatives(genes, lambda: _element(genes, num_rules, depth + 2))
            return f"({inner}){genes.of(('*', '+', '?', ''))}"
        case 4:
            return f"({_element(genes, num_rules, depth + 1)}){repeated(genes)}"
        case _:
            return f"r{genes.below(num_rules)}{repeated(genes)}"


def _schema_fields(genes: Genes) -> dict[str, Any]:
    form = {"name": "answer", "schema": schema(genes)}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


LANGUAGES: Mapping[str, Callable[[Genes], dict[str, Any]]] = {
    "schema": _schema_fields,
    "regex": lambda genes: {"regex": regex(genes)[:MAX_CHARS]},
    "gbnf": lambda genes: {"grammar": gbnf(genes)[:MAX_CHARS]},
    "lark": lambda genes: {"grammar": lark(genes)},
}


def request(language: str, genes: Genes, letter_id: int) -> dict[str, Any]:
    """Return a chat under a grammar; half of them prefer one letter, so that the answer goes on with it."""
    bias = {"logit_bias": {str(letter_id): 100}} if genes.below(2) else {}
    sampling = {"temperature": genes.below(2), "n": genes.of((1, 1, 4)), "max_tokens": genes.of((16, 64))}
    question = {"messages": [{"role": "user", "content": "What is Quire?"}]}
    return {**question, **sampling, **bias, **LANGUAGES[language](genes)}
