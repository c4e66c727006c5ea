"""The rules of calls that are written in Python (see `python_calls`).

Values are JSON, which is read as a literal, too; only lone constants are those of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.text.calls.call_rules import ANY_KEY, CallRules
from app.text.calls.python_calls import PythonCalls
from app.text.calls.tool_schemas import ANNOTATIONS, Parameters
from app.text.grammar.lark_text import quoted, several

_STRING = r"""/'([^'\\]|\\['"\\nrt])*'/"""


class PythonRules:
    """Adds the calls of functions to the rules of a grammar. One owner."""

    def __init__(self, form: PythonCalls, rules: CallRules) -> None:
        self._form = form
        self._rules = rules

    def calls(self, functions: Sequence[Parameters], is_parallel: bool) -> str:
        """Add the rules; return what stands for one call or, with `is_parallel`, several.

        Raises:
            Unwritable: a schema cannot be checked.
        """
        form, rules = self._form, self._rules
        calls = []
        for number, parameters in enumerate(functions):
            parameters.check_writable()
            calls.append(f"call_{number}")
            arguments = self._arguments(number, parameters)
            rules.add(f"call_{number}: {quoted(parameters.function + '(')} {arguments} {quoted(')')}")
        rules.add(f"call: {' | '.join(calls)}")
        listed = f'"[" {several("call", quoted(", "), is_parallel)} "]"'
        if form.is_bare:
            return listed
        rules.add(f"list: {rules.opening(form.opens[0])} {listed} {rules.mark(form.closes[0])}")
        return rules.repeated("list", is_parallel)

    def _arguments(self, number: int, parameters: Parameters) -> str:
        """Return what stands for the arguments of a function, in the order of the schema, with commas between them."""
        if parameters.is_free:
            one = f'{ANY_KEY} "=" {self._value(parameters.others, parameters)}'
            return f"({one} ({quoted(', ')} {one})*)?"
        first = after = '""'  # the arguments from one on: before them there is none, or there is one
        for index, (name, schema, is_required) in reversed(list(enumerate(parameters.listed))):
            if schema is False:
                continue
            one = f"{quoted(name + '=')} {self._value(schema, parameters)} {after}"
            for kind, separator, others in (("first", "", first), ("after", quoted(", "), after)):
                self._rules.add(f"{kind}_{number}_{index}: {separator} {one}{'' if is_required else f' | {others}'}")
            first, after = f"first_{number}_{index}", f"after_{number}_{index}"
        return first

    def _value(self, schema: Any, parameters: Parameters) -> str:
        fields = schema if isinstance(schema, dict) else {}
        kind, is_plain = fields.get("type"), not fields.keys() - ANNOTATIONS - {"type"}
        if kind == "boolean" and is_plain:
            return '("True" | "False")'
        if kind == "null":
            return '"None"'
        value = self._rules.json_value(schema, parameters)
        return f"({_STRING} | {value})" if kind == "string" and is_plain else value
