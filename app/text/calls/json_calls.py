"""Calls that are JSON objects with a name and arguments: `<tool_call>{"name": "f", "arguments": {}}</tool_call>`.

The objects may come in a list, on lines, or with `,` or `;` between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.text.calls.calls import Calls, ListMachine, ListMarks
from app.text.calls.tool_schemas import ToolSchemas
from app.text.reading.reader import BLANKS, Reader, Reading

ARGUMENTS = ("arguments", "parameters")
_BETWEEN = f"{BLANKS},;"
_BARE_KEYS = frozenset({"name", "type", "id", *ARGUMENTS})


@dataclass(frozen=True, slots=True)
class JsonCalls(ListMarks):
    """The marks of a family."""

    def machine(self, schemas: ToolSchemas) -> JsonCallsMachine:
        """Return a machine for one answer."""
        return JsonCallsMachine(self, schemas)


class JsonCallsMachine(ListMachine):
    """Reads text with such calls in it; `form` is resolved."""

    def _read_body(self, reader: Reader, calls: Calls, is_bare: bool) -> Reading[None]:
        yield from reader.skip()
        is_list = not is_bare and (yield from reader.accept("["))
        num_before = num_calls = reader.num_calls
        while (yield from reader.skip(_BETWEEN)) == "{":
            is_whole = yield from self._read_object(reader, calls, is_bare)
            if reader.num_calls == num_calls and num_calls > num_before:
                reader.rewind()  # no call: text behind the calls
                reader.keep()
            if not is_whole or reader.num_calls == num_calls:
                return
            num_calls = reader.num_calls
        if is_list and num_calls > num_before and (not (yield from reader.peek()) or (yield from reader.accept("]"))):
            reader.keep()

    def _read_object(self, reader: Reader, calls: Calls, is_bare: bool) -> Reading[bool]:
        """Read one object; return whether it is whole."""
        yield from reader.accept("{")
        arguments: str | None = ""  # those that come before the name
        has_begun = has_arguments = False
        while (key := (yield from self._read_key(reader))) is not None:
            if is_bare and not has_begun and key not in _BARE_KEYS:
                break
            if key == "name" and not has_begun:
                name = yield from reader.read_string()
                if not name or (is_bare and name not in self._schemas.names):
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

    def _read_key(self, reader: Reader) -> Reading[str | None]:
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
