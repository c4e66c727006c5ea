"""The types of the live view's messages, as the page's modules are checked with them, are those of the schema."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest

from app.contract.live_state import live_schema
from tests.house.source import ROOT

SOURCE = (ROOT / "app" / "static" / "engine" / "live_types.js").read_text(encoding="utf-8")
NAMES = {
    "LiveState": "LiveState", "LiveBlocks": "LiveBlocks", "LiveHost": "LiveHost", "LiveGroup": "LiveGroup",
    "Figures": "EngineFigures", "BlockFigures": "BlockFigures", "Percentiles": "Percentiles",
}  # fmt: skip
"""The types of the page, and what the schema calls them."""
KINDS = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean"}


class Field(NamedTuple):
    """A field of an object: what it may be, and whether it may be missing. `*` is a list, of whatever items."""

    kinds: frozenset[str]
    is_optional: bool


def declared(source: str, name: str) -> dict[str, Field]:
    """The fields that a type of the page has, whether it is declared on one line or with a line for each field."""
    if short := re.search(rf"@typedef \{{\{{(.*)\}}\}} {name}$", source, re.MULTILINE):
        found = re.findall(r"(\w+)(\??): ((?:\[[^\]]*\]|[^,])+)", short[1])
        return {field: Field(kinds_of(text), bool(mark)) for field, mark, text in found}
    block = re.search(rf"@typedef \{{object\}} {name}\b.*\n((?: \* @property .*\n)+)", source)
    assert block is not None, f"live_types.js has no type {name}"
    found = re.findall(r"@property \{(.*)\} (\[?)(\w+)", block[1])
    return {field: Field(kinds_of(text), bool(mark)) for text, mark, field in found}


def kinds_of(text: str) -> frozenset[str]:
    """What a type in a comment allows; strings that are spelled out are themselves."""
    return frozenset("*" if part.endswith("[]") else part.strip('"') for part in text.strip().split(" | "))


def sent(schema: dict[str, Any], name: str) -> dict[str, Field]:
    """The fields that a struct of the schema has."""
    struct = schema["$defs"][name]
    return {
        field: Field(frozenset(kinds_in(schema, of)), field not in struct["required"])
        for field, of in struct["properties"].items()
    }


def kinds_in(schema: dict[str, Any], of: dict[str, Any]) -> list[str]:
    if "anyOf" in of:
        return [kind for each in of["anyOf"] for kind in kinds_in(schema, each)]
    if "$ref" in of:
        name = of["$ref"].rpartition("/")[2]
        return kinds_in(schema, schema["$defs"][name]) if "enum" in schema["$defs"][name] else [name]
    if "enum" in of:
        return list(of["enum"])
    return ["null"] if of["type"] == "null" else ["*"] if of["type"] == "array" else [KINDS[of["type"]]]


def differing(source: str, name: str) -> set[str]:
    """The fields of a type of the page that are not those of the schema; that may call spelled out texts a string."""
    page, schema = declared(source, name), sent(live_schema(), NAMES[name])
    for field in page.keys() & schema.keys():
        kinds = frozenset(NAMES.get(kind, kind) for kind in page[field].kinds)
        schemas = schema[field].kinds
        # A name for all texts on one side, and some texts on the other.
        if "string" in kinds ^ schemas and not (kinds | schemas) & {"number", "boolean", "*", "null", *NAMES.values()}:
            kinds = schemas
        page[field] = Field(kinds, page[field].is_optional)
    return {field for field in page.keys() | schema.keys() if page.get(field) != schema.get(field)}


@pytest.mark.parametrize("name", NAMES)
def test_a_type_of_the_page_has_the_fields_of_the_schema(name: str):
    assert len(declared(SOURCE, name)) >= 3
    assert differing(SOURCE, name) == set()


def test_the_schema_has_no_other_objects():
    schema = live_schema()["$defs"]
    assert isinstance(schema, dict)
    objects = {name for name, one in schema.items() if one.get("type") == "object"}
    assert objects == {*NAMES.values()}


@pytest.mark.parametrize(
    ("line", "instead", "name", "field"),
    [
        (" * @property {number} paused\n", "", "Figures", "paused"),
        ("@property {BlockFigures} blocks", "@property {Percentiles} blocks", "Figures", "blocks"),
        ("@property {number | null} step_ms", "@property {number} step_ms", "Figures", "step_ms"),
        ('"draining" | "failed"', '"failed"', "Figures", "state"),
        ("[limit]", "limit", "LiveGroup", "limit"),
        ("fenced: number}} LiveBlocks", "fence: number}} LiveBlocks", "LiveBlocks", "fenced"),
    ],
)
def test_a_type_that_differs_is_found(line: str, instead: str, name: str, field: str):
    assert line in SOURCE
    assert field in differing(SOURCE.replace(line, instead), name)
