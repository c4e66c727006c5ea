"""Calls as Python writes them: `[f(a="x", b=[1, 2]), g()]`, with or without marks around them.

The JSON of the arguments is ours. A call begins when its first argument does, or its closing bracket comes. In a
grammar values are JSON, which is read as a literal, too; only lone constants are those of Python, unless calls stand on
lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.text.calls.call_reader import CallReader
from app.text.calls.call_rules import ANY_KEY, CallRules
from app.text.calls.call_syntax import CallSyntax
from app.text.calls.python_literals import json_string, pass_literal
from app.text.calls.tool_schemas import ANNOTATIONS, Parameters
from app.text.grammar.lark_text import quoted, several
from app.text.reading.marks import SHOWN
from app.text.reading.reader import BLANKS, Reader, Reading

MAX_NAME = 256
_NAME = re.compile(rf"[^\s<>{{}}()\[\]\"'=,{SHOWN}]+")
_BETWEEN = f"{BLANKS},"
_STRING = r"""/'([^'\\]|\\['"\\nrt])*'/"""


@dataclass(frozen=True, kw_only=True)
class PythonCalls(CallSyntax):
    """Calls in a list; behind a mark the list may have no brackets, without one (`is_bare`) it must.

    With `has_lines` a grammar writes calls on lines, without brackets, and all their values as JSON.
    """

    has_lines: bool = False

    def can_spell(self, name: str) -> bool:
        """Return whether a name of a parameter ends where `=` begins."""
        return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None

    def read_calls(self, calls: CallReader, mark: str) -> Reading[None]:
        """Read a list of calls; behind a mark its brackets may be missing."""
        reader, is_bare = calls.reader, not mark
        yield from reader.skip()
        is_list = yield from reader.accept("[")
        if is_bare and not is_list:
            return
        yield from reader.skip()
        num_before = num_calls = reader.num_calls
        while True:
            is_whole = yield from _read_call(calls, is_bare)
            if reader.num_calls == num_calls:
                break
            if not is_whole:
                return
            num_calls = reader.num_calls
            yield from reader.skip(_BETWEEN)
        if num_calls > num_before:
            reader.rewind()  # no call: text behind the calls
            reader.keep()
            char = yield from reader.skip(_BETWEEN)
            if is_list and (not char or (yield from reader.accept("]"))):
                reader.keep()

    def add_rules(self, rules: CallRules, functions: Sequence[Parameters], *, is_parallel: bool) -> str:
        """Add the rules of a list of calls."""
        rules.add(f"call: {rules.add_each_call(functions, partial(self._call, rules))}")
        listed = f'"[" {several("call", quoted(", "), is_parallel)} "]"'
        if self.has_lines:
            listed = f"NEWLINE {several('call', 'NEWLINE', is_parallel)} NEWLINE"
        if self.is_bare:
            return listed
        rules.add(f"list: {rules.opening(self.opens[0])} {listed} {rules.mark(self.closes[0])}")
        return rules.repeated("list", is_parallel)

    def _call(self, rules: CallRules, number: int, parameters: Parameters) -> str:
        return f"{quoted(parameters.function + '(')} {self._arguments(rules, number, parameters)} {quoted(')')}"

    def _arguments(self, rules: CallRules, number: int, parameters: Parameters) -> str:
        """Return the rule of a function's arguments, in the order of the schema, with commas between them."""
        if parameters.is_free:
            one = f'{ANY_KEY} "=" {self._value(rules, parameters.others, parameters)}'
            return f"({one} ({quoted(', ')} {one})*)?"
        first = after = '""'  # the arguments from one on: before them there is none, or there is one
        for index, (name, schema, is_required) in reversed(list(enumerate(parameters.listed))):
            if schema is False:
                continue
            one = f"{quoted(name + '=')} {self._value(rules, schema, parameters)} {after}"
            for kind, separator, others in (("first", "", first), ("after", quoted(", "), after)):
                rules.add(f"{kind}_{number}_{index}: {separator} {one}{'' if is_required else f' | {others}'}")
            first, after = f"first_{number}_{index}", f"after_{number}_{index}"
        return first

    def _value(self, rules: CallRules, schema: Any, parameters: Parameters) -> str:
        fields = schema if isinstance(schema, dict) else {}
        kind, is_plain = fields.get("type"), not fields.keys() - ANNOTATIONS - {"type"}
        if kind == "boolean" and is_plain and not self.has_lines:
            return '("True" | "False")'
        if kind == "null" and not self.has_lines:
            return '"None"'
        value = rules.json_value(schema, parameters)
        return f"({_STRING} | {value})" if kind == "string" and is_plain else value


def _read_call(calls: CallReader, is_bare: bool) -> Reading[bool]:
    """Read one call; return whether it is whole."""
    reader = calls.reader
    name = yield from reader.read_run(_NAME, MAX_NAME)
    if not name or (is_bare and name not in calls.schemas.names) or not (yield from reader.accept("(")):
        return False
    yield from reader.skip()
    key: str | None = None
    is_whole = yield from reader.accept(")")
    if not is_whole:
        key = yield from _read_key(reader)
        if key is None:
            return False
    calls.begin(name)
    calls.add("{")
    if key is not None:
        is_whole = yield from _read_arguments(calls, key)
    if not is_whole:
        reader.drop_unfinished()
    calls.add("}" if is_whole else "")
    calls.end(is_whole=is_whole)
    return is_whole


def _read_arguments(calls: CallReader, key: str) -> Reading[bool]:
    """Read all arguments and the closing bracket; the first `key` was read. Return whether they are complete."""
    reader, separator = calls.reader, ""
    while True:
        calls.add(f"{separator}{json_string(key)}: ")
        if not (yield from pass_literal(reader, calls.add)):
            return False
        yield from reader.skip()
        has_comma = yield from reader.accept(",")
        yield from reader.skip()
        if (yield from reader.accept(")")):
            return True
        reader.keep()
        found = (yield from _read_key(reader)) if has_comma else None
        if found is None:
            reader.rewind()
            return False
        reader.drop()
        key, separator = found, ", "


def _read_key(reader: Reader) -> Reading[str | None]:
    """Read `key=` and the blanks around it; None if there is none."""
    key = yield from reader.read_run(_NAME, MAX_NAME)
    yield from reader.skip()
    if not key or not (yield from reader.accept("=")):
        return None
    yield from reader.skip()
    return key
