"""Grammars made of genes, in each language that a request may write one in, with the request that asks for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.hostile.genes import Genes

COUNTS = (0, 1, 1, 2, 2, 3, 5, 8, 20, 60, 200, 1000, 5000)
SMALL = (1, 1, 2, 2, 3, 4, 6, 10, 24, 60)
NUMBERS = (0, 1, -1, 7, 97, 999_983, 49_999_991, 10**12, -(10**15), 0.1, 1e-9, 1e300)
LETTERS = ("a", "b", "z", "zz", "q", "é", "日", "🙂", "word ", '"', "\\", "\n")
CLASSES = ("[a-z]", "[^q]", ".", r"\w", r"\d", r"[\x00-\x7f]", r"\p{L}", r"[а-я]", "(?s:.)", r"\S")
FORMATS = ("date-time", "email", "uuid", "ipv6", "uri", "hostname", "duration")
MAX_DEPTH = 6
MAX_CHARS = 60_000


def _is_deep(genes: Genes, depth: int) -> bool:
    return depth >= MAX_DEPTH or genes.is_long


def regex(genes: Genes, depth: int = 0) -> str:
    """Return a regular expression."""
    if _is_deep(genes, depth):
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
            return f"({regex(genes, depth + 1)}){_repeated(genes)}"
        case 5:
            return f"({genes.of(CLASSES)}*{_quoted(genes.of(LETTERS))}{genes.of(CLASSES)}{_repeated(genes)})"
        case 6:
            part = regex(genes, depth + 2)
            return "".join(f"({part}){number}" for number in range(min(genes.of(SMALL), MAX_CHARS // (len(part) + 4))))
        case 7:
            return f"(?i:{regex(genes, depth + 1)})"
        case _:
            return "".join(regex(genes, depth + 1) for _ in range(genes.of(SMALL)))


def schema(genes: Genes, depth: int = 0) -> dict[str, Any]:
    """Return a JSON schema."""
    found = _schema(genes, depth)
    if depth == 0:
        found["$defs"] = {"d": _schema(genes, 1)}
    return found


def _schema(genes: Genes, depth: int) -> dict[str, Any]:
    if _is_deep(genes, depth):
        return {"type": genes.of(("string", "integer", "boolean", "null"))}
    match genes.below(12):
        case 0:
            return {"type": "string", "minLength": genes.of(SMALL), "maxLength": genes.of(COUNTS) + 60}
        case 1:
            return {"type": "string", "pattern": f"^{regex(genes, depth + 2)}$"}
        case 2:
            parts = [{"pattern": f"^({_pattern(genes, number)})$"} for number in range(genes.of(SMALL))]
            return {"type": "string", "allOf": parts}
        case 3:
            return {"enum": [f"{genes.of(LETTERS)}{number}" for number in range(1 + min(genes.of(COUNTS), 4000))]}
        case 4:
            kind = genes.of(("integer", "number"))
            return {"type": kind, genes.of(("minimum", "multipleOf", "exclusiveMaximum")): genes.of(NUMBERS)}
        case 5:
            items = _schema(genes, depth + 1)
            return {"type": "array", "items": items, "minItems": genes.of(SMALL), "maxItems": 60 + genes.of(COUNTS)}
        case 6 | 7:
            names = [f"{genes.of(LETTERS)}{number}" for number in range(genes.of(SMALL))]
            fields: dict[str, Any] = {name: _schema(genes, depth + 1) for name in names}
            required = names[: genes.below(len(names) + 1)]
            return {"type": "object", "properties": fields, "required": required, "additionalProperties": _more(genes)}
        case 8:
            return {genes.of(("anyOf", "oneOf")): [_schema(genes, depth + 1) for _ in range(genes.of(SMALL))]}
        case 9:
            return {"$ref": genes.of(("#/$defs/d", "#", "#/then", "#/else"))}
        case 10:
            ends = {key: _schema(genes, depth + 1) for key in ("then", "else")}
            condition = {"if": genes.of((True, False, {"type": "string"})), **ends}
            return genes.of((condition, {"$defs": {"c": condition}, "type": "string"}))
        case _:
            return {"type": "string", "format": genes.of(FORMATS)}


def _more(genes: Genes) -> object:
    return genes.of((False, True, {"type": "string"}, {"$ref": "#"}))


def gbnf(genes: Genes) -> str:
    """Return a grammar in GBNF."""
    count = genes.of(SMALL)
    names = ("root", *(f"r{number}" for number in range(count)))
    return "\n".join(f"{name} ::= {_alternatives(genes, lambda: _element(genes, count, 0))}" for name in names)


def _alternatives(genes: Genes, element: Callable[[], str]) -> str:
    """Return some alternatives of some elements each, as GBNF and Lark write them."""
    parts = [" ".join(element() for _ in range(min(genes.of(SMALL), 6))) for _ in range(min(genes.of(SMALL), 10))]
    return " | ".join(parts)


def _element(genes: Genes, num_rules: int, depth: int) -> str:
    if _is_deep(genes, depth):
        return '"a"'
    match genes.below(6):
        case 0:
            return json.dumps(genes.of(LETTERS), ensure_ascii=False)
        case 1:
            return genes.of(("[a-z]", "[^q]", "[0-9a-f]", "[^\\x00-\\x1f]"))
        case 2:
            return f"r{genes.below(num_rules)}"
        case 3:
            inner = _alternatives(genes, lambda: _element(genes, num_rules, depth + 2))
            return f"({inner}){genes.of(('*', '+', '?', ''))}"
        case 4:
            return f"({_element(genes, num_rules, depth + 1)}){_repeated(genes)}"
        case _:
            return f"r{genes.below(num_rules)}{_repeated(genes)}"


def lark(genes: Genes) -> str:
    """Return a grammar in Lark."""
    count = genes.of(SMALL)
    lines = [f"start: {_alternatives(genes, lambda: _lark_element(genes, count))}"]
    lines += [f"r{number}: {_alternatives(genes, lambda: _lark_element(genes, count))}" for number in range(count)]
    lines += [f"T{number}: {_terminal(genes)}" for number in range(count)]
    if genes.below(3) == 0:
        lines.append("%ignore /[ \\t]+/")
    return "\n".join(lines)


def _lark_element(genes: Genes, count: int) -> str:
    number = genes.below(count)
    match genes.below(7):
        case 0:
            return json.dumps(genes.of(LETTERS), ensure_ascii=False)
        case 1 | 2:
            return f"T{number}"
        case 3:
            return f"r{number}{genes.of(('', '*', '+', '?'))}"
        case 4:
            return f"(r{number} | T{number}){{{genes.of(SMALL)},{60 + genes.of(COUNTS)}}}"
        case 5:
            return f"%json {json.dumps(_schema(genes, 3))}"
        case _:
            return f"/{_slashed(regex(genes, 3))}/"


def _terminal(genes: Genes) -> str:
    sign = genes.of((" & ", " & ~", " | "))
    return sign.join(f"/{_slashed(_pattern(genes, number))}/" for number in range(genes.of(SMALL)))


def _pattern(genes: Genes, number: int) -> str:
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


def _repeated(genes: Genes) -> str:
    least = genes.of(SMALL)
    return genes.of((f"{{{least}}}", f"{{{least},}}", f"{{{least},{least + genes.of(COUNTS)}}}"))


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\")


def _slashed(pattern: str) -> str:
    return pattern.replace("/", "\\/").replace("\n", "\\n")


def _schema_fields(genes: Genes) -> dict[str, Any]:
    form = {"name": "answer", "schema": schema(genes)}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


LANGUAGES: Mapping[str, Callable[[Genes], dict[str, Any]]] = {
    "schema": _schema_fields,
    "regex": lambda genes: {"regex": regex(genes)[:MAX_CHARS]},
    "gbnf": lambda genes: {"grammar": gbnf(genes)[:MAX_CHARS]},
    "lark": lambda genes: {"grammar": lark(genes)[:MAX_CHARS]},
}


def request(language: str, genes: Genes, letter_id: int) -> dict[str, Any]:
    """Return a chat under a grammar; half of them prefer one letter, so that the answer goes on with it."""
    bias = {"logit_bias": {str(letter_id): 100}} if genes.below(2) else {}
    sampling = {"temperature": genes.below(2), "n": genes.of((1, 1, 4)), "max_tokens": genes.of((16, 64))}
    question = {"messages": [{"role": "user", "content": "What is Quire?"}]}
    return {**question, **sampling, **bias, **LANGUAGES[language](genes)}
