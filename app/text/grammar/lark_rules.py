"""Which grammars in Lark have a complete text: one that needs itself has none, and would be written for ever.

Only as much of Lark is read as that takes, in linear time: of rules with a parameter neither its values nor conditions,
which can only take texts away. What is not understood here counts as complete, and stays as it is: the library then
says what is wrong with it, if anything is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from json import JSONDecoder
from typing import Any

from app.contract.errors import InvalidValue
from app.text.grammar.json_schemas import library_schema
from app.text.grammar.lark_text import as_json
from app.text.grammar.rule_parts import DEAD, FREE, Part, choice, endless, reference, sequence
from app.text.grammar.schema_ends import endless_place

START = "start"
MAX_NESTED = 8  # grammars in grammars
# A text that is not closed ends the reading, so every character is looked at once.
_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t]|//[^\n]*+|\#[^\n]*+)++)
    | (?P<line>(?:\r?\n)++)
    | (?P<json>%(?:json|regex|llguidance)[ \t\r\n]*+(?=\{))
    | (?P<lark>%lark\b[ \t\r\n]*+\{)
    | (?P<other>%(?:ignore|import)\b[^\n]*+)
    | (?P<if>%if[ \t]++[a-z][a-z_]*+[ \t]*+)
    | (?P<name>(?P<rule>[!?]?[_?]?[a-z][a-z0-9_-]*+)(?![A-Za-z0-9_-])
        (?:[ \t]*+::[ \t]*+(?:_|0[xX][0-9a-fA-F]++|[0-9]++|[a-z][a-z_]*+[ \t]*+\([^()\n]*+\)))?+(?![ \t]*+::))
    | (?P<leaf>"(?:\\.|[^"\\\n])*+"i?|/(?:\\.|[^/\\])++/[imslux]*+|<[^<>\s]++>|@[\w-]++|_?[A-Z][A-Z0-9_-]*+)
    | (?P<alias>->[ \t]*+[\w-]++)
    | (?P<times>\{[ \t]*+(?P<least>\d*+)[ \t]*+(?:,[ \t]*+\d*+[ \t]*+)?\}|~[ \t]*+(?P<from>\d++)(?:\.\.\d++)?)
    | (?P<mark>\.\.|[?*+()\[\]|&~:}])""",
    re.VERBOSE,
)
_OPTIONAL = frozenset("?*")
_BRACKET = re.compile(r"[^()\n]*+[()]")
_HEAD = re.compile(r"(?:\.[0-9]++)?[ \t]*+:")  # of a rule, behind its name and options
_OPTIONS = re.compile(r'[ \t]*+\[(?:"(?:\\.|[^"\\\n])*+"i?|/(?:\\.|[^/\\])++/|[^\]"/])*+\]')


def check_lark(source: str) -> None:
    """Reject a grammar that has no complete text.

    Raises:
        InvalidValue: the message names a rule that is the reason; `param` is `grammar`.
    """
    try:
        rules = _Reader(source).grammar()
    except _Unread:
        return
    check_rules(rules, START)


def checked_lark(source: str) -> str:
    """Return a grammar with the schemas in it as the library gets those of clients. Any thread.

    Options of the library's own, in `x-guidance`, hold beside ours.

    Raises:
        InvalidValue: it has no complete text, or a schema in it is rejected; `param` is `grammar`.
    """
    reader = _Reader(source)
    try:
        rules = reader.grammar()
    except _Unread:
        return source
    check_rules(rules, START)
    pieces, position = [], 0
    for begin, end, schema in reader.schemas:
        pieces += [source[position:begin], _as_the_library_gets_it(schema)]
        position = end
    return "".join([*pieces, source[position:]])


def _as_the_library_gets_it(schema: Mapping[str, Any]) -> str:
    options = schema.get("x-guidance")
    try:
        checked = library_schema(schema)
        if isinstance(options, dict):
            checked["x-guidance"] = {**checked["x-guidance"], **options}
        text = as_json(checked)
        text.encode()
    except InvalidValue as error:
        raise InvalidValue(error.message, param="grammar") from None
    except RecursionError:
        raise InvalidValue("grammar has a schema that is nested too deeply.", param="grammar") from None
    except UnicodeEncodeError:
        raise InvalidValue(
            "grammar has a schema with a lone surrogate; it must be valid Unicode.", param="grammar"
        ) from None
    return text


def check_rules(rules: Mapping[str, Part], root: str) -> None:
    """Reject rules of which the first one, `root`, has no complete text.

    Raises:
        InvalidValue: see `check_lark`.
    """
    if (name := endless(rules, root)) is not None:
        raise InvalidValue(
            f"grammar can never be completed: the rule {name!r} has no alternative that ends; add one.", param="grammar"
        )


class _Unread(Exception):
    """Something is not Lark, or not understood here."""


class _Body:
    """The alternatives of a rule, or between brackets, as they are read."""

    def __init__(self, closing: str) -> None:
        self.closing = closing
        self._alternatives: list[list[Part]] = [[]]

    def add(self, part: Part) -> None:
        self._alternatives[-1].append(part)

    def begin(self) -> None:
        self._alternatives.append([])

    def free_last(self) -> None:
        """Let the part that was read last be left out."""
        if self._alternatives[-1]:
            self._alternatives[-1][-1] = FREE

    def part(self) -> Part:
        return FREE if self.closing == "]" else choice([sequence(each) for each in self._alternatives])


class _Reader:
    """Reads one text from its beginning to its end.

    Attributes:
        schemas: those that have been read, each with its beginning and its end.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.schemas: list[tuple[int, int, Mapping[str, Any]]] = []

    def grammar(self, depth: int = 0) -> dict[str, Part]:
        """Read the rules of a grammar, up to the bracket behind it if it is inside another one."""
        if depth > MAX_NESTED:
            raise _Unread
        rules: dict[str, Part] = {}
        while (match := self._next()) is not None:
            kind, text = match.lastgroup, match[0]
            if kind == "json":
                self._json()
            elif kind in ("name", "leaf"):
                self._head()
                rules[(match["rule"] or text).lstrip("!?")] = self._body(depth)
            elif depth and text == "}":
                return rules
            elif kind not in ("blank", "line", "other"):
                raise _Unread
        if depth:
            raise _Unread
        return rules

    def _next(self) -> re.Match[str] | None:
        if self._at == len(self._text):
            return None
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise _Unread
        self._at = match.end()
        return match

    def _head(self) -> None:
        """Pass what stands between the name of a rule and its alternatives."""
        options = _OPTIONS.match(self._text, self._at)
        head = _HEAD.match(self._text, self._at if options is None else options.end())
        if head is None:
            raise _Unread
        self._at = head.end()

    def _body(self, depth: int) -> Part:
        """Read the alternatives of a rule, up to the line of the next one."""
        open_bodies = [_Body("")]
        while True:
            before = self._at
            match = self._next()
            if match is None or (match[0] == "}" and len(open_bodies) == 1):
                self._at = before
                break
            if match.lastgroup == "line" and len(open_bodies) == 1 and not self._goes_on():
                break
            self._read(match, open_bodies, depth)
        if len(open_bodies) > 1:
            raise _Unread
        return open_bodies[0].part()

    def _goes_on(self) -> bool:
        """Return whether a further alternative follows on the next line that has anything."""
        while (match := _TOKEN.match(self._text, self._at)) is not None and match.lastgroup in ("blank", "line"):
            self._at = match.end()
        return match is not None and match[0] == "|"

    def _read(self, match: re.Match[str], bodies: list[_Body], depth: int) -> None:
        """Read one token, or a schema or a grammar, into the innermost of the open bodies."""
        kind, text, body = match.lastgroup, match[0], bodies[-1]
        if kind == "name":
            body.add(reference(match["rule"].lstrip("!?")))
        elif kind == "leaf":
            body.add(FREE)
        elif kind == "if":
            self._condition()
        elif kind == "json":
            value = self._json()
            is_schema = text.startswith("%json")
            if is_schema:
                self.schemas.append((match.end(), self._at, value))
            body.add(DEAD if is_schema and endless_place(value) is not None else FREE)
        elif kind == "lark":
            body.add(DEAD if endless(self.grammar(depth + 1), START) is not None else FREE)
        elif text in _OPTIONAL or (kind == "times" and not (match["least"] or match["from"] or "").strip("0")):
            body.free_last()
        elif text in ("(", "["):
            bodies.append(_Body(")" if text == "(" else "]"))
        elif text == "|":
            body.begin()
        elif text == body.closing:
            bodies.pop()
            bodies[-1].add(body.part())
        elif kind in ("other", "mark") and text not in ("+", "&", "~", ".."):
            raise _Unread

    def _condition(self) -> None:
        """Pass the brackets of a condition, if it has any."""
        depth = 0
        while depth or self._text.startswith("(", self._at):
            match = _BRACKET.match(self._text, self._at)
            if match is None:
                raise _Unread
            self._at = match.end()
            depth += 1 if match[0].endswith("(") else -1
            if not depth:
                return

    def _json(self) -> dict[str, Any]:
        """Read an object, whose bracket comes next."""
        try:
            value, self._at = JSONDecoder().raw_decode(self._text, self._at)
        except (RecursionError, ValueError):
            raise _Unread from None
        return dict(value)
