"""The rules of one grammar of calls, and what all families have in common: marks, texts before them, values of JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.contract.errors import InvalidValue
from app.text.calls.tool_schemas import Parameters, Unwritable
from app.text.grammar.json_schemas import DEFINITIONS, for_library
from app.text.grammar.lark_text import as_json, quoted, several

ANY_KEY = r"/[^\s\x00-\x1f<>{}()\[\]\"'=,:]{1,64}/"
"""The name of a parameter that no schema names."""
_WHOLE = "whole-schema"  # a definition


class CallRules:
    """The lines of a grammar, as they are added. One owner.

    Attributes:
        lines: the rules and terminals.
        special_tokens: the model's, with their ids; a mark that is one of them is that token and no text.
        has_text: whether there may be text before each opening mark.
    """

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self.special_tokens = special_tokens
        self.has_text = False

    def add(self, line: str) -> None:
        """Add a rule or a terminal."""
        self.lines.append(line)

    def new_name(self, kind: str) -> str:
        """Return a name that no rule has."""
        return f"{kind}_{len(self.lines)}"

    def mark(self, mark: str) -> str:
        """Return the rule of a mark; empty for none."""
        if not mark:
            return ""
        token_id = self.special_tokens.get(mark)
        return quoted(mark) if token_id is None else f"<[{token_id}]>"

    def opening(self, mark: str) -> str:
        """Return the rule of the mark that begins calls, and of the text before it, if there may be any."""
        if not self.has_text:
            return self.mark(mark)
        if mark in self.special_tokens:
            self.add(f"opening: /(?s:.*)/ {self.mark(mark)}")
        else:
            self.add(f"opening[suffix={quoted(mark)}]: /(?s:.*)/")
        return "opening"

    def repeated(self, rule: str, is_parallel: bool) -> str:
        """Return a rule, once or several times; text before a call separates calls, too."""
        return rule if self.has_text else several(rule, "NEWLINE", is_parallel)

    def add_calls(self, functions: Sequence[Parameters], call_of: Callable[[str, str], str]) -> None:
        """Add the rule `call` of a call with JSON; `call_of` gets a name and the rule of its arguments."""
        calls = []
        for number, parameters in enumerate(functions):
            self.add_schema(f"arguments_{number}", {"type": "object", **parameters.root}, parameters)
            calls.append(call_of(parameters.function, f"arguments_{number}"))
        self.add(f"call: {' | '.join(calls)}")

    def add_each_call(self, functions: Sequence[Parameters], call_of: Callable[[int, Parameters], str]) -> str:
        """Add a rule for the calls of each function, whose parameters stand one by one; return what any of them is.

        `call_of` gets the number of a function and its parameters.

        Raises:
            Unwritable: a schema does not name its parameters one by one.
        """
        for number, parameters in enumerate(functions):
            parameters.check_writable()
            self.add(f"call_{number}: {call_of(number, parameters)}")
        return " | ".join(f"call_{number}" for number in range(len(functions)))

    def json_value(self, schema: Any, parameters: Parameters) -> str:
        """Return the name of a rule for the JSON of a value whose schema is a part of that of `parameters`."""
        name, own = self.new_name("value"), schema if isinstance(schema, dict) else {}
        self.add_schema(name, _with_definitions(own, parameters.root), parameters)
        return name

    def add_schema(self, name: str, schema: dict[str, Any], parameters: Parameters) -> None:
        """Add a rule for the JSON that a schema of a function allows.

        Raises:
            Unwritable: no text of it ends.
        """
        try:
            self.add(f"{name}: %json {as_json(for_library(schema))}")
        except InvalidValue as error:
            raise Unwritable(parameters.function, f"is rejected: {error.message.rstrip('.')}") from None


def _with_definitions(schema: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of the schema `root` with what its references lead to, as a schema of its own."""
    if '"$ref"' not in as_json(schema):
        return schema
    alone = {**schema, **{name: root[name] for name in ("$defs", "definitions") if name in root}}
    redirected: dict[str, Any] = _redirected(alone)
    if redirected != alone:
        redirected["$defs"] = {**redirected.get("$defs", {}), _WHOLE: _redirected(root)}
    return redirected


def _redirected(value: Any) -> Any:
    """Return a schema whose references to other places than definitions lead into the definition `_WHOLE`."""
    if isinstance(value, list):
        return [_redirected(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    changed = {name: _redirected(each) for name, each in value.items()}
    path = changed.get("$ref")
    if isinstance(path, str) and path.startswith("#") and not path.startswith(DEFINITIONS):
        changed["$ref"] = f"#/$defs/{_WHOLE}{path[1:]}"
    return changed
