"""Grammars of an answer that must or may call tools, in a family's own syntax: Lark text with the tools' schemas in it.

The grammar is what templates write and parsers read. Between the parts of JSON that are ours there is the one space
that templates write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.text.calls.call_rules import CallRules
from app.text.calls.calls import ListMarks
from app.text.calls.formats import CallFormat
from app.text.calls.json_calls import JsonCalls
from app.text.calls.named_calls import NamedCalls
from app.text.calls.parameter_calls import ParameterCalls
from app.text.calls.parameter_rules import ParameterRules
from app.text.calls.python_calls import PythonCalls
from app.text.calls.python_rules import PythonRules
from app.text.calls.tool_schemas import Parameters, Unwritable
from app.text.grammar.lark_text import quoted, several, without


class CallGrammar:
    """The grammar of calls of some tools in one format; `special_tokens` are the model's, with their ids.

    Its methods may be called once.
    """

    def __init__(
        self, calls: CallFormat, tools: Sequence[Mapping[str, Any]], special_tokens: Mapping[str, int]
    ) -> None:
        self._calls = calls
        self._functions = [Parameters(tool["function"]) for tool in tools]
        self._rules = CallRules(special_tokens)

    def required(self, *, is_parallel: bool) -> str:
        """Return the grammar of an answer that is one call or, with `is_parallel`, several.

        Raises:
            Unwritable: a schema cannot be checked in this format, or a parser could not read the name of a parameter.
        """
        return self._source(self._start(is_parallel))

    def optional(self, *, is_parallel: bool) -> str | None:
        """Return the grammar of text with calls in it, at most one without `is_parallel`.

        None if calls may come without a mark, because then they cannot be told from text.

        Raises:
            Unwritable: see `required`.
        """
        form, rules = self._calls.form, self._rules
        if isinstance(form, ListMarks) and form.is_bare:
            return None
        marks = [mark for mark in self._opens() if mark not in rules.special_tokens]
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
        form = self._calls.form
        self._check_names()
        if isinstance(form, JsonCalls):
            return self._json(form, is_parallel)
        if isinstance(form, NamedCalls):
            return self._named(form, is_parallel)
        if isinstance(form, PythonCalls):
            return PythonRules(form, self._rules).calls(self._functions, is_parallel)
        return ParameterRules(form, self._rules).calls(self._functions, is_parallel)

    def _check_names(self) -> None:
        """Check that a parser can read all names of parameters; else the grammar would allow what is no call."""
        form = self._calls.form
        if not isinstance(form, PythonCalls | ParameterCalls):
            return  # names are strings of JSON
        for parameters in self._functions:
            for name, _, _ in parameters.listed:
                if not form.is_key(name):
                    raise Unwritable(
                        parameters.function,
                        f"has a parameter with the name {name[:100]!r}, which the calls of this model cannot write; "
                        "names have at most 256 letters, digits and underscores",
                    )

    def _opens(self) -> list[str]:
        """Return the marks that begin calls for the parsers."""
        form = self._calls.form
        if isinstance(form, NamedCalls):
            return [mark for mark in (form.section, form.open) if mark]
        return [*form.opens, *([form.name_open] if isinstance(form, ParameterCalls) and form.name_open else [])]

    def _json(self, form: JsonCalls, is_parallel: bool) -> str:
        self._add_calls(self._json_call)
        if form.is_bare:
            return several("call", quoted("; "), is_parallel)
        opening = self._rules.opening(form.opens[0])
        closing = self._rules.mark(form.closes[0]) if form.closes else ""
        listed = f'"[" {several("call", quoted(", "), is_parallel)} "]"'
        if not form.closes:
            lines = ""
        elif self._calls.name == "json_list":
            lines = f"| NEWLINE {several('call', 'NEWLINE', is_parallel)} NEWLINE"
        else:
            self._rules.add(f"marked: {opening} NEWLINE call NEWLINE {closing}")
            return self._rules.repeated("marked", is_parallel)
        return f"{opening} ({listed} {lines}) {closing}"

    def _json_call(self, name: str, arguments: str) -> str:
        key = "parameters" if isinstance(self._calls.form, JsonCalls) and self._calls.form.is_bare else "arguments"
        before = f'{{"name": {quoted(name)}, "{key}": '
        num_chars = self._calls.id_chars
        id_open, id_close = quoted(', "id": "'), quoted('"')
        call_id = f"({id_open} /[a-zA-Z0-9]{{{num_chars}}}/ {id_close})?" if num_chars else ""
        return f"{quoted(before)} {arguments} {call_id} {quoted('}')}"

    def _named(self, form: NamedCalls, is_parallel: bool) -> str:
        opening, before = self._rules.mark(form.open), self._rules.mark(form.arguments)
        if not form.section:
            opening = self._rules.opening(form.open)
        closing = self._rules.mark(form.closes[0]) if form.closes else ""
        if form.id_mark:
            before = f"({self._rules.mark(form.id_mark)} /[a-zA-Z0-9]{{{self._calls.id_chars}}}/)? {before}"
        number = '":" /[0-9]{1,3}/' if form.path else ""
        self._add_calls(
            lambda name, arguments: f"{opening} {quoted(form.path + name)} {number} {before} {arguments} {closing}"
        )
        if not form.section:
            return self._rules.repeated("call", is_parallel)
        if not form.has_kind:
            listed = several("call", "NEWLINE", is_parallel)
            return f"{self._rules.opening(form.section)} NEWLINE {listed} NEWLINE {self._rules.mark(form.closes[1])}"
        kind, fence = f'{opening} "function" {before}', quoted("\n```")
        fenced = [
            f"{kind} {quoted(f'{parameters.function}{chr(10)}```json{chr(10)}')} arguments_{number} {fence} {closing}"
            for number, parameters in enumerate(self._functions)
        ]
        self._rules.add(f"fenced: {' | '.join(fenced)}")
        both = f"({several('call', 'NEWLINE', is_parallel)} | {several('fenced', 'NEWLINE', is_parallel)})"
        return f"{self._rules.opening(form.section)} {both} {self._rules.mark(form.closes[1])}"

    def _add_calls(self, call_of: Callable[[str, str], str]) -> None:
        """Add the rules of a call of any tool; `call_of` gets a name and the rule of its arguments."""
        calls = []
        for number, parameters in enumerate(self._functions):
            self._rules.add_schema(f"arguments_{number}", {"type": "object", **parameters.root}, parameters)
            calls.append(call_of(parameters.function, f"arguments_{number}"))
        self._rules.add(f"call: {' | '.join(calls)}")
