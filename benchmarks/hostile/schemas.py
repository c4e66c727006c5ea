"""JSON schemas made of genes."""

from __future__ import annotations

from typing import Any

from benchmarks.hostile.genes import Genes
from benchmarks.hostile.patterns import COUNTS, LETTERS, SMALL, is_deep, pattern, regex

NUMBERS = (0, 1, -1, 7, 97, 999_983, 49_999_991, 10**12, -(10**15), 0.1, 1e-9, 1e300)
FORMATS = ("date-time", "email", "uuid", "ipv6", "uri", "hostname", "duration")


def schema(genes: Genes, depth: int = 0) -> dict[str, Any]:
    """Return a JSON schema, with the definitions that those in it refer to."""
    found = _schema(genes, depth)
    found["$defs"] = {"d": _schema(genes, depth + 1), "c": _condition(genes, depth + 1)}
    return found


def _schema(genes: Genes, depth: int) -> dict[str, Any]:
    if is_deep(genes, depth):
        return {"type": genes.of(("string", "integer", "boolean", "null"))}
    match genes.below(12):
        case 0:
            return {"type": "string", "minLength": genes.of(SMALL), "maxLength": genes.of(COUNTS) + 60}
        case 1:
            return {"type": "string", "pattern": f"^{regex(genes, depth + 2)}$"}
        case 2:
            parts = [{"pattern": f"^({pattern(genes, number)})$"} for number in range(genes.of(SMALL))]
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
            return {"$ref": genes.of(("#/$defs/d", "#", "#/$defs/c/then", "#/$defs/c/else"))}
        case 10:
            return {"type": "string", **_condition(genes, depth + 1)}
        case _:
            return {"type": "string", "format": genes.of(FORMATS)}


def _condition(genes: Genes, depth: int) -> dict[str, Any]:
    """Return a condition that is accepted: its ends exclude nothing, which only the whole of them shows."""
    ends = {key: _end(genes, depth + 1) for key in ("then", "else")}
    return {"if": genes.of((True, False, {"type": "string"})), **ends}


def _end(genes: Genes, depth: int) -> dict[str, Any]:
    return {"description": genes.of(LETTERS)} if is_deep(genes, depth) else _condition(genes, depth)


def _more(genes: Genes) -> object:
    return genes.of((False, True, {"type": "string"}, {"$ref": "#"}))
