"""Calls as Python writes them: `[f(a="x", b=[1, 2]), g()]`, with or without marks around them.

The JSON of the arguments is ours. A call begins when its first argument does, or its closing bracket comes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.text.calls.calls import Calls, ListMachine, ListMarks
from app.text.calls.python_literals import json_string, pass_literal
from app.text.calls.tool_schemas import ToolSchemas
from app.text.reading.markers import SHOWN
from app.text.reading.reader import BLANKS, Reader, Reading

MAX_NAME = 256
_NAME = re.compile(rf"[^\s<>{{}}()\[\]\"'=,{SHOWN}]+")
_BETWEEN = f"{BLANKS},"


@dataclass(frozen=True, slots=True)
class PythonCalls(ListMarks):
    """The marks of a family."""

    def is_key(self, name: str) -> bool:
        """Return whether a parameter of this name can be read from a call."""
        return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None

    def machine(self, schemas: ToolSchemas) -> PythonCallsMachine:
        """Return a machine for one answer."""
        return PythonCallsMachine(self, schemas)


class PythonCallsMachine(ListMachine):
    """Reads text with such calls in it; `form` is resolved."""

    def _read_body(self, reader: Reader, calls: Calls, is_bare: bool) -> Reading[None]:
        yield from reader.skip()
        is_list = yield from reader.accept("[")
        if is_bare and not is_list:
            return
        yield from reader.skip()
        num_before = num_calls = reader.num_calls
        while True:
            is_whole = yield from self._read_call(reader, calls, is_bare)
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

    def _read_call(self, reader: Reader, calls: Calls, is_bare: bool) -> Reading[bool]:
        """Read one call; return whether it is whole."""
        name = yield from reader.read_run(_NAME, MAX_NAME)
        if not name or (is_bare and name not in self._schemas.names) or not (yield from reader.accept("(")):
            return False
        yield from reader.skip()
        key: str | None = None
        is_whole = yield from reader.accept(")")
        if not is_whole:
            key = yield from self._read_key(reader)
            if key is None:
                return False
        calls.begin(name)
        calls.add("{")
        if key is not None:
            is_whole = yield from self._read_arguments(reader, calls, key)
        if not is_whole:
            reader.drop_unfinished()
        calls.add("}" if is_whole else "")
        calls.end(is_whole=is_whole)
        return is_whole

    def _read_arguments(self, reader: Reader, calls: Calls, key: str) -> Reading[bool]:
        """Read all arguments and the closing bracket; the first `key` was read. Return whether they are complete."""
        separator = ""
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
            found = (yield from self._read_key(reader)) if has_comma else None
            if found is None:
                reader.rewind()
                return False
            reader.drop()
            key, separator = found, ", "

    def _read_key(self, reader: Reader) -> Reading[str | None]:
        """Read `key=` and the blanks around it; None if there is none."""
        key = yield from reader.read_run(_NAME, MAX_NAME)
        yield from reader.skip()
        if not key or not (yield from reader.accept("=")):
            return None
        yield from reader.skip()
        return key
