"""Grammars of an answer that must or may call tools: Lark text with the tools' schemas in it, in a family's syntax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.text.calls.call_rules import CallRules
from app.text.calls.call_syntax import CallSyntax
from app.text.calls.tool_schemas import Parameters, Unwritable
from app.text.grammar.lark_text import without


class CallGrammar:
    """The grammar of calls of some tools in one syntax; `special_tokens` are the model's, with their ids.

    Its methods may be called once.
    """

    def __init__(
        self, syntax: CallSyntax, tools: Sequence[Mapping[str, Any]], special_tokens: Mapping[str, int]
    ) -> None:
        self._syntax = syntax
        self._functions = [Parameters(tool["function"]) for tool in tools]
        self._rules = CallRules(special_tokens)

    def required(self, *, is_parallel: bool) -> str:
        """Return the grammar of an answer that is one call or, with `is_parallel`, several.

        Raises:
            Unwritable: a schema cannot be checked in this syntax, or a parser could not read the name of a parameter.
        """
        return self._source(self._start(is_parallel))

    def optional(self, *, is_parallel: bool) -> str | None:
        """Return the grammar of text with calls in it, at most one without `is_parallel`.

        None if calls may come without a mark, because then they cannot be told from text.

        Raises:
            Unwritable: see `required`.
        """
        if self._syntax.is_bare:
            return None
        rules = self._rules
        marks = [mark for mark in self._syntax.begins if mark not in rules.special_tokens]
        rules.add(" & ".join(["REST: /(?s:.*)/", *map(without, marks)]))
        rules.has_text = True
        return self._source(f"({self._start(is_parallel)}){'*' if is_parallel else '?'} REST")

    def beside(self, answer: str, *, is_parallel: bool) -> str:
        """Return the grammar of an answer that is one call or several, or what `answer` says: the body of a rule.

        Raises:
            Unwritable: see `required`.
        """
        start = self._start(is_parallel)
        self._rules.add(f"answer: {answer}")
        return self._source(f"{start} | answer")

    def _source(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules.lines, r"NEWLINE: /\n?/", ""])

    def _start(self, is_parallel: bool) -> str:
        """Add the rules of calls; a name that no parser could read is refused, for it would make a call no call."""
        for parameters in self._functions:
            for name, _, _ in parameters.listed:
                if not self._syntax.can_spell(name):
                    raise Unwritable(
                        parameters.function,
                        f"has a parameter with the name {name[:100]!r}, which the calls of this model cannot write; "
                        "names have at most 256 letters, digits and underscores",
                    )
        return self._syntax.add_rules(self._rules, self._functions, is_parallel=is_parallel)
