"""Calls whose name stands before their JSON: `[TOOL_CALLS]f[ARGS]{}`, `<function=f>{}</function>`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.runtime.lazy_property import lazy_property
from app.text.calls.call_reader import CallReader, is_name
from app.text.calls.call_rules import CallRules
from app.text.calls.call_syntax import CallSyntax
from app.text.calls.tool_schemas import Parameters
from app.text.calls.tools import ID_PATH
from app.text.grammar.lark_text import quoted, several
from app.text.reading.marks import Marks
from app.text.reading.reader import Reading

_FENCE = "```"
_NUMBER = re.compile(r":[0-9]+$")


@dataclass(frozen=True, kw_only=True)
class NamedCalls(CallSyntax):
    """Calls by name and JSON. With `name_open` several stand between outer marks; `closes` has that of a call first.

    An id may stand between `id_mark` and `arguments`. With `has_kind` there may be a kind before `arguments`, and the
    name and a fence behind it. With `has_named_ids` the id stands in place of the name.
    """

    arguments: str
    id_mark: str = ""
    has_kind: bool = False

    def read_calls(self, calls: CallReader, mark: str) -> Reading[None]:
        """Read one call."""
        reader = calls.reader
        found = yield from reader.read_until(self._before_arguments)
        if found is not None and found[1] == self.id_mark:
            rest = yield from reader.read_until(self._arguments)
            found = None if rest is None else (found[0], rest[1])
        if found is None:
            return
        name = found[0].strip()
        if self.has_named_ids:
            name = _NUMBER.sub("", name.removeprefix(ID_PATH))
        is_fenced = False
        if (yield from reader.skip()) != "{" and self.has_kind:
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

    def add_rules(self, rules: CallRules, functions: Sequence[Parameters], *, is_parallel: bool) -> str:
        """Add the rules of names and JSON; with a kind all calls have it, or none."""
        opening = rules.mark(self.name_open) or rules.opening(self.opens[0])
        closing = rules.mark(self.closes[0]) if self.closes else ""
        before = arguments_mark = rules.mark(self.arguments)
        if self.id_mark:
            before = f"({rules.mark(self.id_mark)} /[a-zA-Z0-9]{{{self.id_chars}}}/)? {before}"
        path, number = (ID_PATH, '":" /[0-9]{1,3}/') if self.has_named_ids else ("", "")
        rules.add_calls(
            functions,
            lambda name, arguments: f"{opening} {quoted(path + name)} {number} {before} {arguments} {closing}",
        )
        if not self.name_open:
            return rules.repeated("call", is_parallel)
        inner = several("call", "NEWLINE", is_parallel)
        if self.has_kind:
            kind, fence = f'{opening} "function" {arguments_mark}', quoted(f"\n{_FENCE}")
            names = [quoted(f"{parameters.function}\n{_FENCE}json\n") for parameters in functions]
            fenced = [f"{kind} {name} arguments_{index} {fence} {closing}" for index, name in enumerate(names)]
            rules.add(f"fenced: {' | '.join(fenced)}")
            inner = f"({inner} | {several('fenced', 'NEWLINE', is_parallel)})"
        else:
            inner = f"NEWLINE {inner} NEWLINE"
        return f"{rules.opening(self.opens[0])} {inner} {rules.mark(self.closes[1])}"

    @lazy_property
    def _before_arguments(self) -> Marks:
        return Marks((self.id_mark, self.arguments))

    @lazy_property
    def _arguments(self) -> Marks:
        return Marks((self.arguments,))
