"""Calls that are JSON objects with a name and arguments: `<tool_call>{"name": "f", "arguments": {}}</tool_call>`.

The objects may come in a list, on lines, or with `,` or `;` between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.text.calls.call_reader import CallReader
from app.text.calls.call_rules import CallRules
from app.text.calls.call_syntax import CallSyntax
from app.text.calls.tool_schemas import Parameters
from app.text.grammar.lark_text import quoted, several
from app.text.reading.reader import BLANKS, Reader, Reading

ARGUMENTS = ("arguments", "parameters")
_BETWEEN = f"{BLANKS},;"
_BARE_KEYS = frozenset({"name", "type", "id", *ARGUMENTS})


@dataclass(frozen=True, kw_only=True)
class JsonCalls(CallSyntax):
    """Calls as objects; with `shares_block` several stand between one pair of marks, else each between its own."""

    shares_block: bool = False

    def read_calls(self, calls: CallReader, mark: str) -> Reading[None]:
        """Read objects, or a list of them."""
        reader, is_bare = calls.reader, not mark
        yield from reader.skip()
        is_list = not is_bare and (yield from reader.accept("["))
        num_before = num_calls = reader.num_calls
        while (yield from reader.skip(_BETWEEN)) == "{":
            is_whole = yield from _read_object(calls, is_bare)
            if reader.num_calls == num_calls and num_calls > num_before:
                reader.rewind()  # no call: text behind the calls
                reader.keep()
            if not is_whole or reader.num_calls == num_calls:
                return
            num_calls = reader.num_calls
        if is_list and num_calls > num_before and (not (yield from reader.peek()) or (yield from reader.accept("]"))):
            reader.keep()

    def add_rules(self, rules: CallRules, functions: Sequence[Parameters], *, is_parallel: bool) -> str:
        """Add the rules of objects; in a block they stand in a list or on lines."""
        rules.add_calls(functions, self._call)
        if self.is_bare:
            return several("call", quoted("; "), is_parallel)
        opening = rules.opening(self.opens[0])
        closing = rules.mark(self.closes[0]) if self.closes else ""
        if not self.shares_block:
            rules.add(f"marked: {opening} NEWLINE call NEWLINE {closing}")
            return rules.repeated("marked", is_parallel)
        listed = f'"[" {several("call", quoted(", "), is_parallel)} "]"'
        lines = f"| NEWLINE {several('call', 'NEWLINE', is_parallel)} NEWLINE" if self.closes else ""
        return f"{opening} ({listed} {lines}) {closing}"

    def _call(self, name: str, arguments: str) -> str:
        key = "parameters" if self.is_bare else "arguments"
        before = f'{{"name": {quoted(name)}, "{key}": '
        id_open, id_close = quoted(', "id": "'), quoted('"')
        call_id = f"({id_open} /[a-zA-Z0-9]{{{self.id_chars}}}/ {id_close})?" if self.id_chars else ""
        return f"{quoted(before)} {arguments} {call_id} {quoted('}')}"


def _read_object(calls: CallReader, is_bare: bool) -> Reading[bool]:
    """Read one object; return whether it is whole."""
    reader = calls.reader
    yield from reader.accept("{")
    arguments: str | None = ""  # those that come before the name
    has_begun = has_arguments = False
    while (key := (yield from _read_key(reader))) is not None:
        if is_bare and not has_begun and key not in _BARE_KEYS:
            break
        if key == "name" and not has_begun:
            name = yield from reader.read_string()
            if not name or (is_bare and name not in calls.schemas.names):
                break
            calls.begin(name)
            calls.add(arguments or "")
            has_begun = True
        elif has_begun:
            is_first = key in ARGUMENTS and not has_arguments
            if not (yield from reader.pass_value(calls.add if is_first else _ignore)):
                break
            has_arguments |= is_first
        else:
            value = yield from reader.read_value()
            if value is None:
                break
            if key in ARGUMENTS and not has_arguments:
                arguments, has_arguments = value, True
        if (yield from reader.skip()) != "," or not (yield from reader.accept(",")):
            break
    is_whole = yield from reader.accept("}")
    if has_begun:
        if not is_whole:
            reader.drop_unfinished()
        calls.add("{}" if is_whole and not has_arguments else "")
        calls.end(is_whole=is_whole or has_arguments)
    return is_whole


def _read_key(reader: Reader) -> Reading[str | None]:
    """Read `"key":` and the blanks around it; None if there is none."""
    yield from reader.skip()
    key = yield from reader.read_string()
    if key is None or (yield from reader.skip()) != ":":
        return None
    yield from reader.accept(":")
    yield from reader.skip()
    return key


def _ignore(text: str) -> None:
    """Drop a value that is no part of a call's arguments."""
