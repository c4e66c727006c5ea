"""The shape of a request: its keys, roles, kinds of items and names of tools, without any of its texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_SHOWN = frozenset({"role", "type", "tool_choice", "mode", "effort", "summary", "execution"})
"""The keys whose texts are one of a few, and are shown."""
_OPAQUE = frozenset({"parameters", "input_schema", "schema", "client_metadata", "metadata", "logit_bias"})
"""The keys of objects whose own keys are a user's or a tool's."""
_MAX_SHOWN = 64


def shape_of(value: object, key: str = "") -> Any:
    """Return the shape of parsed JSON that stands under `key`: the same structure, with kinds for its texts."""
    if isinstance(value, dict):
        is_input = key == "input" and "type" not in value  # of a call, not of a request
        return "object" if key in _OPAQUE or is_input else {name: shape_of(value[name], name) for name in value}
    if isinstance(value, list):
        return [*map(_tool, value)] if key == "tools" else _without_repeats([shape_of(each) for each in value])
    if isinstance(value, str):
        return value if key in _SHOWN and len(value) <= _MAX_SHOWN else "text"
    return value if value is None or isinstance(value, bool) else "number"


def facts_of(shape: object, path: str = "") -> Iterator[str]:
    """Yield what a shape says, a line for each leaf: its path and its kind."""
    if isinstance(shape, dict):
        for key, value in shape.items():
            yield from facts_of(value, f"{path}.{key}" if path else key)
    elif isinstance(shape, list):
        for value in shape:
            yield from facts_of(value, f"{path}[]")
    else:
        yield f"{path}: {shape}"


def _tool(tool: object) -> str:
    """Return kind and name of a definition, and the names of those inside."""
    if not isinstance(tool, Mapping):
        return "text"
    function = tool.get("function")
    named: Mapping[str, object] = function if isinstance(function, Mapping) else tool
    inner = tool.get("tools")
    names = " ".join(map(_tool, inner)) if isinstance(inner, list) else ""
    parts = (str(tool.get("type", "")), str(named.get("name", "")), f"({names})" if names else "")
    return " ".join(part for part in parts if part)


def _without_repeats(shapes: list[Any]) -> list[Any]:
    """Return shapes without those that are equal to the one before."""
    return [shape for index, shape in enumerate(shapes) if not index or shape != shapes[index - 1]]
