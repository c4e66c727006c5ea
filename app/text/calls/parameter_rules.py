"""The rules of calls with a mark around every parameter (see `parameter_calls`).

A string stands as it is, everything else as JSON: `Parameters` tells both to this grammar and to the parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from app.text.calls.call_rules import ANY_KEY, CallRules
from app.text.calls.parameter_calls import ParameterCalls
from app.text.calls.raw_texts import RawTexts
from app.text.calls.tool_schemas import ANNOTATIONS, STRING, Parameters
from app.text.grammar.lark_text import quoted, several, without_pair

_ANY_TEXT = r"/(.|\n)*/"


class ParameterRules:
    """Adds the calls of functions to the rules of a grammar. One owner."""

    def __init__(self, form: ParameterCalls, rules: CallRules) -> None:
        self._form = form
        self._rules = rules

    def calls(self, functions: Sequence[Parameters], is_parallel: bool) -> str:
        """Add the rules; return what stands for one call or, with `is_parallel`, several.

        Raises:
            Unwritable: a schema cannot be checked.
        """
        form, rules = self._form, self._rules
        calls = []
        name_open, name_close = rules.mark(form.name_open), rules.mark(form.name_close)
        for number, parameters in enumerate(functions):
            parts = " ".join(self._parts(number, parameters))
            calls.append(f"call_{number}")
            rules.add(f"call_{number}: {name_open} {quoted(parameters.function)} {name_close} NEWLINE {parts}")
        outer = form.opens[0].replace("<", "</", 1)
        closes = [mark for mark in form.closes if mark == outer or (form.name_open and mark == form.closes[0])]
        closing = " NEWLINE ".join(map(rules.mark, closes))
        inner = f"({' | '.join(calls)})"
        if form.shares_block:
            rules.add(f"inner: {inner} {rules.mark(closes[0])}")
            inner, closing = f"{several('inner', 'NEWLINE', is_parallel)} NEWLINE", rules.mark(outer)
        rules.add(f"call: {rules.opening(form.opens[0])} NEWLINE {inner} {closing}")
        return rules.repeated("call", is_parallel)

    def _parts(self, number: int, parameters: Parameters) -> Iterator[str]:
        """Yield what stands for each parameter of a function, in the order of the schema."""
        form, rules = self._form, self._rules
        parameters.check_writable()
        excluded = "" if form.value_close in rules.special_tokens else self._begin
        texts = RawTexts(parameters, f"TEXT_{number}", excluded, rules.add)
        key_open, key_close = rules.mark(form.key_open), rules.mark(form.key_close)
        if parameters.is_free:
            yield f"({key_open} {ANY_KEY} {key_close} {self._value(parameters.others, parameters, texts)} NEWLINE)*"
        for name, schema, is_required in parameters.listed:
            if schema is False:
                continue
            part = f"{key_open} {quoted(name)} {key_close} {self._value(schema, parameters, texts)} NEWLINE"
            yield part if is_required else f"({part})?"

    def _value(self, schema: Any, parameters: Parameters, texts: RawTexts) -> str:
        """Return what stands for a value and the marks around it."""
        form, rules = self._form, self._rules
        opening = f"NEWLINE {rules.mark(form.value_open)}" if form.value_open else ""
        types = parameters.types(schema)
        terminal = texts.terminal(schema) if types == STRING else None
        if terminal is not None:
            # The parser takes a newline from both sides, so there must be one where the text might have its own.
            return f"{opening or self._newline} {self._checked(terminal)}"
        if types == STRING or parameters.takes_any_text(schema):
            return f"{opening} {self._any_text()}"
        is_flag = types == {"boolean"} and not schema.keys() - ANNOTATIONS - {"type"}
        value = '("true" | "false" | "True" | "False")' if is_flag else rules.json_value(schema, parameters)
        newline = "NEWLINE" if form.has_lines else ""
        return f"{opening or newline} {value} {newline} {rules.mark(form.value_close)}"

    @property
    def _begin(self) -> str:
        """What begins the mark behind a value, and stands in no text that is checked: `</`."""
        return self._form.value_close[:2]

    @property
    def _newline(self) -> str:
        return quoted("\n") if self._form.has_lines else ""

    def _checked(self, terminal: str) -> str:
        """Return what stands for a text that is checked, and the mark behind it."""
        form, rules = self._form, self._rules
        name = rules.new_name("text")
        if form.value_close not in rules.special_tokens:
            end = f"\n{form.value_close}" if form.has_lines else form.value_close
            rules.add(f"{name}[suffix={quoted(end)}]: {terminal} & {without_pair(*self._begin)}")
            return name
        rules.add(f"{name.upper()}: {terminal} {self._newline}")
        return f"{name.upper()} {rules.mark(form.value_close)}"

    def _any_text(self) -> str:
        """Return what stands for any text, and the mark behind it."""
        form, rules = self._form, self._rules
        name = rules.new_name("text")
        if form.value_close not in rules.special_tokens:
            rules.add(f"{name}[suffix={quoted(form.value_close)}]: {_ANY_TEXT}")
            return name
        rules.add(f"{name}: {_ANY_TEXT}")
        return f"{name} {'NEWLINE' if form.has_lines else ''} {rules.mark(form.value_close)}"
