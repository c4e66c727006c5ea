"""Calls with a mark around every parameter: `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`.

The JSON of the arguments is ours. Parameters that are strings by the tool's schema are passed on as they come; the
others when they are complete: as JSON if they are JSON of a type that the schema allows, else as a string.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace

from app.text.calls.calls import Calls, is_name
from app.text.calls.tool_schemas import ToolSchemas, type_name
from app.text.reading.markers import SHOWN, Marks, as_shown
from app.text.reading.reader import Reader, Reading

MAX_KEY = 256
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}  # from templates that write `value | string`


@dataclass(frozen=True, slots=True)
class ParameterCalls:
    """The marks of a family, in the order in which they come.

    The name stands between `name_open` (if there is one) and `name_close`; without the latter it ends at the first
    parameter or closing mark. With `has_lines` a newline after the opening of a value and one before its closing are
    not part of the value. With `shares_block` several calls may stand between the outer marks; the first of `closes`
    then ends each of them.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    name_open: str = ""
    name_close: str = ""
    key_open: str = "<arg_key>"
    key_close: str = "</arg_key>"
    value_open: str = "<arg_value>"
    value_close: str = "</arg_value>"
    has_lines: bool = False
    shares_block: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        inner = (self.name_open, self.key_open, self.key_close, self.value_open, self.value_close)
        return tuple(mark for mark in (*self.opens, *self.closes, *inner) if mark)

    def resolved(self, special: Collection[str]) -> ParameterCalls:
        """Return the marks of a model with the special tokens `special`."""
        opens, closes = (tuple(as_shown(mark, special) for mark in marks) for marks in (self.opens, self.closes))
        return replace(
            self,
            opens=opens,
            closes=closes,
            name_open=as_shown(self.name_open, special),
            name_close=as_shown(self.name_close, special),
            key_open=as_shown(self.key_open, special),
            key_close=as_shown(self.key_close, special),
            value_open=as_shown(self.value_open, special),
            value_close=as_shown(self.value_close, special),
        )

    def is_key(self, name: str) -> bool:
        """Return whether a parameter of this name can be read from a call: it ends where its closing mark begins."""
        is_plain = name == name.strip() and SHOWN not in name and len(name) <= MAX_KEY
        return is_plain and f"{name}{self.key_close}".find(self.key_close) == len(name)

    def machine(self, schemas: ToolSchemas) -> ParameterCallsMachine:
        """Return a machine for one answer."""
        return ParameterCallsMachine(self, schemas)


class ParameterCallsMachine:
    """Reads text with such calls in it; `form` is resolved."""

    def __init__(self, form: ParameterCalls, schemas: ToolSchemas) -> None:
        self._form = form
        self._schemas = schemas
        self._after_name = Marks([form.name_close] if form.name_close else [form.key_open, *form.closes])
        self._after_key = Marks([form.key_close])
        ends = [f"\n{form.value_close}", form.value_close] if form.has_lines else [form.value_close]
        self._after_value = Marks(ends)

    def read(self, reader: Reader) -> Reading[None]:
        """See `Machine`."""
        calls, form = Calls(reader, self._form.closes), self._form
        opens = (*form.opens, form.name_open) if form.name_open else form.opens  # models leave the outer mark out
        yield from calls.read(opens, lambda mark: self._read_call(reader, calls, mark), is_bare=False)

    def _read_call(self, reader: Reader, calls: Calls, mark: str) -> Reading[None]:
        form = self._form
        if form.name_open and mark != form.name_open:
            yield from reader.skip()
            if not (yield from reader.accept(form.name_open)):
                return
        found = yield from reader.read_until(self._after_name)
        if found is None or not is_name(name := found[0].strip()):
            return
        calls.begin(name)
        calls.add("{")
        is_whole = found[1] in form.closes
        if is_whole:
            calls.close(found[1])
        else:
            is_whole = yield from self._read_parameters(reader, calls, name, found[1] == form.key_open)
        if not is_whole:
            reader.drop_unfinished()
        calls.add("}" if is_whole else "")
        calls.end(is_whole=is_whole)

    def _read_parameters(self, reader: Reader, calls: Calls, name: str, has_key: bool) -> Reading[bool]:
        """Read all parameters; return whether a closing mark follows. With `has_key` the first key was opened."""
        separator = ""
        while True:
            reader.keep()
            if not has_key:
                yield from reader.skip()
            if not has_key and not (yield from reader.accept(self._form.key_open)):
                is_whole = yield from self._is_closing(reader)
                reader.rewind()
                return is_whole
            has_key = False
            key = yield from self._read_key(reader)
            if key is None:
                reader.rewind()
                return False
            calls.add(f"{separator}{_quoted(key)}: ")
            separator = ", "
            if not (yield from self._read_value(reader, calls, name, key)):
                return False

    def _read_key(self, reader: Reader) -> Reading[str | None]:
        """Read a key and what opens its value; None if the text is neither."""
        found = yield from reader.read_until(self._after_key)
        if found is None:
            return None
        if self._form.value_open:
            yield from reader.skip()
            if not (yield from reader.accept(self._form.value_open)):
                return None
        if self._form.has_lines:
            yield from reader.accept("\n")
        reader.drop()
        return found[0].strip()

    def _read_value(self, reader: Reader, calls: Calls, name: str, key: str) -> Reading[bool]:
        """Read a value; return whether it is complete."""
        types = self._schemas.types(name, key)
        if types == {"string"}:
            calls.add('"')
            mark = yield from reader.pass_until(
                self._after_value, lambda text: calls.add(_quoted(text)[1:-1]), keeps_blanks=False
            )
            calls.add('"' if mark else "")
        else:
            pieces: list[str] = []
            mark = yield from reader.pass_until(self._after_value, pieces.append, keeps_blanks=False)
            calls.add(_as_json("".join(pieces), types) if mark else "")
        reader.drop()
        return bool(mark)

    def _is_closing(self, reader: Reader) -> Reading[bool]:
        for mark in self._form.closes:
            if (yield from reader.accept(mark)):
                return True
        return False


def _as_json(text: str, types: frozenset[str]) -> str:
    """Return a value that need not be a string as JSON."""
    written = text.strip()
    written = _PYTHON_WORDS.get(written, written)
    try:
        kind = type_name(json.loads(written, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return _quoted(text)
    is_allowed = not types or kind in types or (kind == "integer" and "number" in types) or "string" not in types
    return written if is_allowed else _quoted(text)


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
