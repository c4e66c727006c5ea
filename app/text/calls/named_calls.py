"""Calls whose name stands before their JSON: `[TOOL_CALLS]f[ARGS]{}`, `<function=f>{}</function>`."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from app.text.calls.calls import Calls, is_name
from app.text.calls.tool_schemas import ToolSchemas
from app.text.reading.markers import Marks, as_shown
from app.text.reading.reader import Reader, Reading

_FENCE = "```"
_NUMBER = re.compile(r":[0-9]+$")


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """The marks of a family, in the order in which they come.

    `section` may stand before the first call, an id between `id_mark` and `arguments`. With `has_kind` there may be a
    kind before `arguments`, and the name and a fence behind it. With `path` the name stands behind this text, and there
    may be a colon and a number behind the name.
    """

    open: str
    arguments: str
    closes: tuple[str, ...] = ()
    section: str = ""
    id_mark: str = ""
    has_kind: bool = False
    path: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return tuple(filter(None, (self.section, self.open, self.id_mark, self.arguments, *self.closes)))

    def resolved(self, special: Collection[str]) -> NamedCalls:
        """Return the marks of a model with the special tokens `special`."""
        return replace(
            self,
            section=as_shown(self.section, special),
            open=as_shown(self.open, special),
            id_mark=as_shown(self.id_mark, special),
            arguments=as_shown(self.arguments, special),
            closes=tuple(as_shown(mark, special) for mark in self.closes),
        )

    def machine(self, schemas: ToolSchemas) -> NamedCallsMachine:
        """Return a machine for one answer."""
        return NamedCallsMachine(self)


class NamedCallsMachine:
    """Reads text with such calls in it; `form` is resolved."""

    def __init__(self, form: NamedCalls) -> None:
        self._form = form
        self._before_arguments = Marks((form.id_mark, form.arguments))
        self._arguments = Marks((form.arguments,))

    def read(self, reader: Reader) -> Reading[None]:
        """See `Machine`."""
        calls, form = Calls(reader, self._form.closes), self._form
        opens = tuple(filter(None, (form.section, form.open)))
        yield from calls.read(opens, lambda mark: self._read_call(reader, calls, mark), is_bare=False)

    def _read_call(self, reader: Reader, calls: Calls, mark: str) -> Reading[None]:
        form = self._form
        if mark != form.open:
            yield from reader.skip()
            if not (yield from reader.accept(form.open)):
                return
        found = yield from reader.read_until(self._before_arguments)
        if found is not None and found[1] == form.id_mark:
            rest = yield from reader.read_until(self._arguments)
            found = None if rest is None else (found[0], rest[1])
        if found is None:
            return
        name = found[0].strip()
        if form.path:
            name = _NUMBER.sub("", name.removeprefix(form.path))
        is_fenced = False
        if (yield from reader.skip()) != "{" and form.has_kind:
            line = yield from reader.read_until(Marks("\n"))
            name = "" if line is None else line[0].strip()
            yield from reader.skip()
            is_fenced = yield from reader.accept(f"{_FENCE}json")
        if not is_name(name) or (yield from reader.skip()) != "{":
            return
        calls.begin(name)
        is_whole = yield from reader.pass_value(calls.add)
        calls.end(is_whole=is_whole)
        if is_fenced and (yield from reader.skip()) == "`" and (yield from reader.accept(_FENCE)):
            reader.keep()
