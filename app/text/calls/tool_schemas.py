"""What parsers and grammars need to know of a request's tools: their names, and the parameters of each.

Both decide by the same functions whether a family writes a parameter as it is or as JSON, so what a grammar allows is
what the parser reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# Fields that allow every value of a type.
ANNOTATIONS = frozenset({
    "$comment", "default", "deprecated", "description", "example", "examples", "readOnly", "title", "writeOnly",
})  # fmt: skip
STRING = frozenset({"string"})
MAX_DEPTH = 32  # of schemas in schemas, behind which they tell no types
_NUMBERS = frozenset({"integer", "number"})
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


# What says something of all arguments together.
_OF_ALL = frozenset({
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "const", "enum", "patternProperties", "propertyNames",
    "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies",
})  # fmt: skip


class Unwritable(Exception):
    """The schema of a function cannot be checked in the form of a model's calls; `reason` says what it has."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(function, reason)
        self.function = function
        self.reason = reason


class Parameter(NamedTuple):
    """A parameter of a function: its schema is any JSON."""

    name: str
    schema: Any
    is_required: bool


class Parameters:
    """The parameters of one function, whose definition is checked (see `tools`). One owner.

    Attributes:
        function: its name.
        root: the schema of its arguments; references in it lead to parts of it.
        own: the schema, or the one that it refers to as a whole.
        listed: the parameters with names, those that are required alone at the end.
        others: the schema of all further ones; False if there must be none.
    """

    def __init__(self, function: Mapping[str, Any]) -> None:
        self.function = str(function["name"])
        self.root: Mapping[str, Any] = function.get("parameters") or {}
        self._types: dict[int, frozenset[str]] = {}
        self._depth = 0
        own = self.target(self.root)
        self.own: Mapping[str, Any] = own if isinstance(own, dict) else {}
        self.others: Any = self.own.get("additionalProperties", True)
        properties, required = self.own.get("properties"), self.own.get("required")
        schemas = dict(properties) if isinstance(properties, dict) else {}
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        needed = frozenset(names)
        schemas |= {name: self.others for name in names if name not in schemas}
        self.listed = tuple(Parameter(name, schema, name in needed) for name, schema in schemas.items())
        self._schemas = schemas
        for schema in (*schemas.values(), self.others):  # in one order, because schemas may lead to each other
            self.types(schema)

    @property
    def is_free(self) -> bool:
        """Whether no parameter is named, and any are allowed."""
        return not self.listed and self.others is not False

    def check_writable(self) -> None:
        """Check that the schema names its parameters one by one, for families that write them so.

        Raises:
            Unwritable: it does not, or says more of all of them.
        """
        for name in sorted(self.own.keys() & _OF_ALL):
            raise Unwritable(self.function, f"has {name!r} beside or instead of properties")
        for parameter in self.listed:
            if parameter.schema is False and parameter.is_required:
                raise Unwritable(self.function, f"requires {parameter.name[:100]!r}, which may have no value")

    def schema_of(self, name: str) -> Any:
        """Return the schema of the parameter `name`."""
        return self._schemas.get(name, self.others)

    def types(self, schema: Any) -> frozenset[str]:
        """Return the JSON types that values of a schema inside `root` may have; none if the schema does not tell."""
        if not isinstance(schema, dict):
            return frozenset()
        key = id(schema)
        if key not in self._types:
            self._types[key] = frozenset()  # found again inside itself, it does not tell
            self._depth += 1
            if self._depth <= MAX_DEPTH:
                self._types[key] = self._find_types(schema)
            self._depth -= 1
        return self._types[key]

    def target(self, schema: Any) -> Any:
        """Return the schema in `root` that a schema refers to and says nothing beside, else the schema itself."""
        seen: set[str] = set()
        while isinstance(schema, dict) and isinstance(path := schema.get("$ref"), str):
            if path in seen or len(seen) == MAX_DEPTH or schema.keys() - ANNOTATIONS - {"$ref", "$defs", "definitions"}:
                break
            seen.add(path)
            found = self.at(path)
            if found is None:
                break
            schema = found
        return schema

    def takes_any_text(self, schema: Any) -> bool:
        """Return whether any text is a value of a schema: as a string, or as JSON if it is that of another type."""
        schema = self.target(schema)
        if schema is True:
            return True
        if not isinstance(schema, dict):
            return False
        fields = schema.keys() - ANNOTATIONS
        if not fields:
            return True
        branches = schema.get("anyOf", schema.get("oneOf")) if len(fields) == 1 else None
        parts = branches if isinstance(branches, list) else [schema]
        is_plain = all(isinstance(part, dict) and part.keys() - ANNOTATIONS == {"type"} for part in parts)
        return is_plain and "string" in self.types(schema)

    def _find_types(self, schema: dict[str, Any]) -> frozenset[str]:
        if (target := self.target(schema)) is not schema:
            return self.types(target)
        return _common([found for found in self._told(schema) if found])

    def _told(self, schema: dict[str, Any]) -> Iterator[frozenset[str]]:
        """Yield what each field of a schema tells about its types, none if nothing."""
        kind = schema.get("type")
        yield frozenset({kind} if isinstance(kind, str) else map(str, kind) if isinstance(kind, list) else ())
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        yield frozenset(map(type_name, values) if isinstance(values, list) else ())
        if isinstance(path := schema.get("$ref"), str):
            yield self.types(self.at(path))
        parts = schema.get("allOf")
        yield from map(self.types, parts if isinstance(parts, list) else ())
        for name in ("anyOf", "oneOf"):
            branches = schema.get(name)
            found = [self.types(branch) for branch in branches] if isinstance(branches, list) else []
            yield frozenset().union(*found) if all(found) else frozenset()

    def at(self, path: str) -> Any:
        """Return the place in `root` that a reference such as `#/$defs/a` leads to; None if there is none."""
        found: Any = self.root
        if path != "#" and not path.startswith("#/"):
            return None
        for name in path.split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        return found


class ToolSchemas:
    """The names and parameters of a request's tools, which are checked definitions (see `tools`).

    Attributes:
        names: the names of the tools.
        is_calls_alone: whether an answer is calls alone.
        is_parallel: whether it may have several.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]] = (), *, is_calls_alone: bool = False, is_parallel: bool = True
    ) -> None:
        self._parameters = {each.function: each for each in (Parameters(tool["function"]) for tool in tools)}
        self.names = frozenset(self._parameters)
        self.is_calls_alone = is_calls_alone
        self.is_parallel = is_parallel

    def types(self, tool: str, parameter: str) -> frozenset[str]:
        """Return the JSON types that a parameter may have; none if the schema does not tell."""
        parameters = self._parameters.get(tool)
        return frozenset() if parameters is None else parameters.types(parameters.schema_of(parameter))


def _common(kinds: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the types that are in all of several sets; every integer is a number."""
    found = kinds[0] if kinds else frozenset()
    for kind in kinds[1:]:
        is_integer = found & _NUMBERS and kind & _NUMBERS and "integer" in found | kind
        found = (found & kind) | (_NUMBERS - {"number"} if is_integer else frozenset())
    return found


def type_name(value: object) -> str:
    """Return the JSON type of a value."""
    return "null" if value is None else _TYPES[type(value)]
