"""Calls with a mark around every parameter: `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`.

The JSON of the arguments is ours. Parameters that are strings by the tool's schema are passed on as they come; the
others when they are complete: as JSON if they are JSON of a type that the schema allows, else as a string. So a grammar
has a string as it is, and everything else as JSON: `Parameters` tells both to it and to the parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.runtime.lazy_property import lazy_property
from app.text.calls.call_marks import closing
from app.text.calls.call_reader import CallReader, is_name
from app.text.calls.call_rules import ANY_KEY, CallRules
from app.text.calls.call_syntax import CallSyntax
from app.text.calls.raw_texts import RawTexts
from app.text.calls.tool_schemas import ANNOTATIONS, STRING, Parameters, type_name
from app.text.grammar.lark_text import quoted, several, without_pair
from app.text.reading.marks import SHOWN, Marks
from app.text.reading.reader import Reading

MAX_KEY = 256
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}  # from templates that write `value | string`
_ANY_TEXT = r"/(.|\n)*/"


@dataclass(frozen=True, kw_only=True)
class ParameterCalls(CallSyntax):
    """Calls with marks around parameters, in the order in which they come.

    Without `name_close` the name ends at the first parameter or closing mark. With `has_lines` a newline after the
    opening of a value and one before its closing are not part of the value. With `shares_block` several calls may stand
    between the outer marks; the first of `closes` then ends each of them.
    """

    name_close: str = ""
    key_open: str = "<arg_key>"
    key_close: str = "</arg_key>"
    value_open: str = "<arg_value>"
    value_close: str = "</arg_value>"
    has_lines: bool = False
    shares_block: bool = False

    def can_spell(self, name: str) -> bool:
        """Return whether a name of a parameter ends where its closing mark begins."""
        is_plain = name == name.strip() and SHOWN not in name and len(name) <= MAX_KEY
        return is_plain and f"{name}{self.key_close}".find(self.key_close) == len(name)

    # --- Reading -------------------------------------------------------------------------------------------------

    def read_calls(self, calls: CallReader, mark: str) -> Reading[None]:
        """Read one call."""
        found = yield from calls.reader.read_until(self._after_name)
        if found is None or not is_name(name := found[0].strip()):
            return
        calls.begin(name)
        calls.add("{")
        is_whole = found[1] in self.closes
        if is_whole:
            calls.close(found[1])
        else:
            is_whole = yield from self._read_parameters(calls, name, found[1] == self.key_open)
        if not is_whole:
            calls.reader.drop_unfinished()
        calls.add("}" if is_whole else "")
        calls.end(is_whole=is_whole)

    def _read_parameters(self, calls: CallReader, name: str, has_key: bool) -> Reading[bool]:
        """Read all parameters; return whether a closing mark follows. With `has_key` the first key was opened."""
        reader, separator = calls.reader, ""
        while True:
            reader.keep()
            if not has_key:
                yield from reader.skip()
            if not has_key and not (yield from reader.accept(self.key_open)):
                is_whole = yield from self._is_closing(calls)
                reader.rewind()
                return is_whole
            has_key = False
            key = yield from self._read_key(calls)
            if key is None:
                reader.rewind()
                return False
            calls.add(f"{separator}{_quoted(key)}: ")
            separator = ", "
            if not (yield from self._read_value(calls, calls.schemas.types(name, key))):
                return False

    def _read_key(self, calls: CallReader) -> Reading[str | None]:
        """Read a key and what opens its value; None if the text is neither."""
        reader = calls.reader
        found = yield from reader.read_until(self._after_key)
        if found is None:
            return None
        if self.value_open:
            yield from reader.skip()
            if not (yield from reader.accept(self.value_open)):
                return None
        if self.has_lines:
            yield from reader.accept("\n")
        reader.drop()
        return found[0].strip()

    def _read_value(self, calls: CallReader, types: frozenset[str]) -> Reading[bool]:
        """Read a value of one of `types`; return whether it is complete."""
        reader = calls.reader
        if types == STRING:
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

    def _is_closing(self, calls: CallReader) -> Reading[bool]:
        for mark in self.closes:
            if (yield from calls.reader.accept(mark)):
                return True
        return False

    @lazy_property
    def _after_name(self) -> Marks:
        return Marks([self.name_close] if self.name_close else [self.key_open, *self.closes])

    @lazy_property
    def _after_key(self) -> Marks:
        return Marks([self.key_close])

    @lazy_property
    def _after_value(self) -> Marks:
        return Marks([f"\n{self.value_close}", self.value_close] if self.has_lines else [self.value_close])

    # --- Rules ---------------------------------------------------------------------------------------------------

    def add_rules(self, rules: CallRules, functions: Sequence[Parameters], *, is_parallel: bool) -> str:
        """Add the rules of calls, with their parameters in the order of the schema."""
        inner = f"({rules.add_each_call(functions, partial(self._call, rules))})"
        outer = closing(self.opens[0])
        closes = [mark for mark in self.closes if mark == outer or (self.name_open and mark == self.closes[0])]
        end = " NEWLINE ".join(map(rules.mark, closes))
        if self.shares_block:
            rules.add(f"inner: {inner} {rules.mark(closes[0])}")
            inner, end = f"{several('inner', 'NEWLINE', is_parallel)} NEWLINE", rules.mark(outer)
        rules.add(f"call: {rules.opening(self.opens[0])} NEWLINE {inner} {end}")
        return rules.repeated("call", is_parallel)

    def _call(self, rules: CallRules, number: int, parameters: Parameters) -> str:
        name = f"{rules.mark(self.name_open)} {quoted(parameters.function)} {rules.mark(self.name_close)}"
        return f"{name} NEWLINE {' '.join(self._parts(rules, number, parameters))}"

    def _parts(self, rules: CallRules, number: int, parameters: Parameters) -> Iterator[str]:
        """Yield what stands for each parameter of a function, in the order of the schema."""
        excluded = "" if self.value_close in rules.special_tokens else self._begin
        texts = RawTexts(parameters, f"TEXT_{number}", excluded, rules.add)
        key_open, key_close = rules.mark(self.key_open), rules.mark(self.key_close)
        if parameters.is_free:
            value = self._value(rules, parameters.others, parameters, texts)
            yield f"({key_open} {ANY_KEY} {key_close} {value} NEWLINE)*"
        for name, schema, is_required in parameters.listed:
            if schema is False:
                continue
            value = self._value(rules, schema, parameters, texts)
            part = f"{key_open} {quoted(name)} {key_close} {value} NEWLINE"
            yield part if is_required else f"({part})?"

    def _value(self, rules: CallRules, schema: Any, parameters: Parameters, texts: RawTexts) -> str:
        """Return the rule of a value and the marks around it."""
        opening = f"NEWLINE {rules.mark(self.value_open)}" if self.value_open else ""
        types = parameters.types(schema)
        terminal = texts.terminal(schema) if types == STRING else None
        if terminal is not None:
            # The parser takes a newline from both sides, so there must be one where the text might have its own.
            return f"{opening or self._newline} {self._checked(rules, terminal)}"
        if types == STRING or parameters.takes_any_text(schema):
            return f"{opening} {self._any_text(rules)}"
        is_flag = types == {"boolean"} and not schema.keys() - ANNOTATIONS - {"type"}
        value = '("true" | "false" | "True" | "False")' if is_flag else rules.json_value(schema, parameters)
        newline = "NEWLINE" if self.has_lines else ""
        return f"{opening or newline} {value} {newline} {rules.mark(self.value_close)}"

    @property
    def _begin(self) -> str:
        """The beginning of the mark behind a value, which stands in no text that is checked: `</`."""
        return self.value_close[:2]

    @property
    def _newline(self) -> str:
        return quoted("\n") if self.has_lines else ""

    def _checked(self, rules: CallRules, terminal: str) -> str:
        """Return the rule of a text that is checked, and of the mark behind it."""
        name = rules.new_name("text")
        if self.value_close not in rules.special_tokens:
            end = f"\n{self.value_close}" if self.has_lines else self.value_close
            rules.add(f"{name}[suffix={quoted(end)}]: {terminal} & {without_pair(*self._begin)}")
            return name
        rules.add(f"{name.upper()}: {terminal} {self._newline}")
        return f"{name.upper()} {rules.mark(self.value_close)}"

    def _any_text(self, rules: CallRules) -> str:
        """Return the rule of any text, and of the mark behind it."""
        name = rules.new_name("text")
        if self.value_close not in rules.special_tokens:
            rules.add(f"{name}[suffix={quoted(self.value_close)}]: {_ANY_TEXT}")
            return name
        rules.add(f"{name}: {_ANY_TEXT}")
        return f"{name} {'NEWLINE' if self.has_lines else ''} {rules.mark(self.value_close)}"


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
