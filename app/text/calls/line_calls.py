"""Calls whose name stands on a line of its own before their JSON: `f` and below it `{"a": 1}`.

The first one begins the answer, without a mark; what begins an answer begins each further one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.text.calls.call_reader import CallReader
from app.text.calls.call_rules import CallRules
from app.text.calls.call_syntax import CallSyntax
from app.text.calls.tool_schemas import Parameters
from app.text.grammar.lark_text import quoted, several
from app.text.reading.marks import SHOWN
from app.text.reading.reader import Reading

MAX_NAME = 256
_NAME = re.compile(rf"[^\s<>{{}}()\[\]\"'{SHOWN}]+")


@dataclass(frozen=True, kw_only=True)
class LineCalls(CallSyntax):
    """Calls by name and JSON on lines. The name must be that of a tool: its line has no mark of a call."""

    def read_calls(self, calls: CallReader, mark: str) -> Reading[None]:
        """Read one call."""
        reader = calls.reader
        yield from reader.skip()
        name = yield from reader.read_run(_NAME, MAX_NAME)
        if name not in calls.schemas.names:
            return
        yield from reader.skip(" \t\r")
        if not (yield from reader.accept("\n")) or (yield from reader.skip()) != "{":
            return
        calls.begin(name)
        is_whole = yield from reader.pass_value(calls.add)
        calls.end(is_whole=is_whole)

    def add_rules(self, rules: CallRules, functions: Sequence[Parameters], *, is_parallel: bool) -> str:
        """Add the rules of names and JSON."""
        rules.add_calls(functions, lambda name, arguments: f"{quoted(f'{name}{chr(10)}')} {arguments}")
        return several("call", rules.mark(self.opens[0]), is_parallel)
