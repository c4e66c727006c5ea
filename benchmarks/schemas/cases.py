"""The hundred schemas with their questions, of `cases/*.json`: one file for each subject, with its system message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "cases"
FEATURES = frozenset({"nesting", "enum", "pattern", "bounded string", "bounded array"})


class Case(NamedTuple):
    """A question, and the schema that its answer must satisfy."""

    name: str
    messages: list[dict[str, str]]
    schema: dict[str, Any]

    @property
    def response_format(self) -> dict[str, Any]:
        """The field of a chat over HTTP."""
        return {"type": "json_schema", "json_schema": {"name": self.name.partition("/")[2], "schema": self.schema}}


def cases() -> list[Case]:
    """Return all cases, by subject."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        subject = json.loads(path.read_text(encoding="utf-8"))
        system = {"role": "system", "content": subject["system"]}
        found += [
            Case(f"{path.stem}/{each['name']}", [system, {"role": "user", "content": each["question"]}], each["schema"])
            for each in subject["cases"]
        ]
    return found


def features(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return which of FEATURES a schema has; objects or lists within its root are nesting."""
    return frozenset(_features(schema, 0))


def _features(schema: object, depth: int) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _features(each, depth)
    if not isinstance(schema, dict):
        return
    is_container = "properties" in schema or "items" in schema
    if is_container and depth:
        yield "nesting"
    if "enum" in schema:
        yield "enum"
    if "pattern" in schema:
        yield "pattern"
    if "maxLength" in schema:
        yield "bounded string"
    if "maxItems" in schema:
        yield "bounded array"
    for key, value in schema.items():
        # Names of properties and definitions are no keywords.
        inner = list(value.values()) if key in ("properties", "$defs", "patternProperties") else value
        yield from _features(inner, depth + is_container)
