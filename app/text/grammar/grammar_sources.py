"""What clients ask for, as one grammar: checks of form and size, before the grammar library sees anything."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from app.contract.errors import InvalidValue
from app.contract.grammar import GBNF_MARK, Grammar, GrammarKind, StructuredOutputs
from app.text.grammar.json_schemas import checked_schema
from app.text.grammar.lark_rules import checked_lark
from app.text.grammar.lark_text import as_json, quoted
from app.text.grammar.schema_keywords import effective

MAX_SOURCE_BYTES = 64 * 2**10
"""The most that a source has; a schema without what excludes nothing, such as its descriptions."""
MAX_SCHEMA_BYTES = 256 * 2**10
"""The most that a schema has with its descriptions."""
MAX_CHOICES = 512
MAX_CHOICE_BYTES = 256
ANY_OBJECT = '{"type":"object"}'


def grammar_of(wanted: StructuredOutputs) -> Grammar:
    """Return the grammar that `wanted` asks for. Any thread.

    Raises:
        InvalidValue: the value has a wrong type, or is too large; `param` is the field of `StructuredOutputs`.
    """
    if wanted.json_object:
        return Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT)
    if wanted.json is not None:
        return json_schema(wanted.json)
    if wanted.regex is not None:
        return Grammar(GrammarKind.REGEX, _checked("regex", wanted.regex))
    if wanted.choice is not None:
        return _choice(wanted.choice)
    return lark(wanted.grammar)


def json_schema(schema: object) -> Grammar:
    """Return the grammar of a JSON schema, given as an object, as true or false, or as text.

    Raises:
        InvalidValue: it is none of these, or too large; `param` is `json`. A keyword cannot be enforced, or the schema
            is nested too deeply; `param` is not set.
    """
    if isinstance(schema, str):
        try:
            schema = orjson.loads(_checked("json", schema, MAX_SCHEMA_BYTES))
        except orjson.JSONDecodeError as error:
            raise InvalidValue(f"json is not JSON ({error}); it must be a JSON schema.", param="json") from None
    if not isinstance(schema, (Mapping, bool)):
        raise InvalidValue(
            f"json is {type(schema).__name__}; it must be a JSON schema, an object or its text.", param="json"
        )
    try:
        source = orjson.dumps(schema).decode()
    except TypeError as error:  # only a caller in Python can give what is no JSON
        raise InvalidValue(f"json is no JSON schema: {error}.", param="json") from None
    schema = effective(orjson.loads(_checked("json", source, MAX_SCHEMA_BYTES)))
    return Grammar(GrammarKind.JSON_SCHEMA, _checked("json", orjson.dumps(schema).decode()))


def lark(source: object) -> Grammar:
    """Return the grammar of a text in Lark, or in GBNF where it contains `::=`.

    Raises:
        InvalidValue: it is no text, or too large; `param` is `grammar`.
    """
    text = _checked("grammar", source)
    if "::=" in text:
        return Grammar(GrammarKind.LARK, GBNF_MARK, gbnf=text)
    return Grammar(GrammarKind.LARK, text)


def lark_source(grammar: Grammar) -> str:
    """Return the source of a grammar in Lark, with its GBNF, if it has any, as Lark.

    Raises:
        InvalidValue: the text is no GBNF, can never be completed, or is too large as Lark; `param` is `grammar`.
    """
    if grammar.gbnf is None:
        return grammar.source
    from app.text.grammar.gbnf import lark_of_gbnf  # it imports the library

    return grammar.source.replace(GBNF_MARK, _checked("grammar", lark_of_gbnf(grammar.gbnf)), 1)


def rule_of(grammar: Grammar) -> str:
    """Return a grammar that `grammar_of` has made as the body of a rule in Lark. Any thread.

    Raises:
        InvalidValue: its schema is too large, or is false, or it can never be completed; `param` is set only for Lark.
    """
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return f"%json {as_json(checked_schema(grammar.source))}"
        case GrammarKind.REGEX:
            return f"%lark {{\n{lark_of_regex(grammar.source)}\n}}"
        case GrammarKind.CHOICE:
            return " | ".join(map(quoted, orjson.loads(grammar.source)))
        case GrammarKind.LARK | GrammarKind.CALLS:
            return f"%lark {{\n{checked_lark(grammar.source)}\n}}"


def lark_of_regex(pattern: str) -> str:
    """Return a grammar in Lark for exactly what a regular expression matches."""
    import llguidance

    whole = orjson.loads(llguidance.LLMatcher.grammar_from_regex(pattern))
    return str(whole["grammars"][0]["lark_grammar"])


def _choice(choices: object) -> Grammar:
    if isinstance(choices, str) or not isinstance(choices, (list, tuple)) or not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidValue(f"choice must be a list of 1 to {MAX_CHOICES} texts.", param="choice")
    for text in choices:
        if not isinstance(text, str) or not 1 <= len(_bytes("choice", text)) <= MAX_CHOICE_BYTES:
            raise InvalidValue(
                f"choice has {str(text)[:80]!r}; each must be a text of 1 to {MAX_CHOICE_BYTES} bytes.", param="choice"
            )
    return Grammar(GrammarKind.CHOICE, _checked("choice", orjson.dumps(list(dict.fromkeys(choices))).decode()))


def _checked(name: str, value: object, most: int = MAX_SOURCE_BYTES) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidValue(f"{name} is {str(value)[:80]!r}; it must be a text, and not empty.", param=name)
    if (size := len(_bytes(name, value))) > most:
        raise InvalidValue(f"{name} has {size} bytes; at most {most} are allowed.", param=name)
    return value


def _bytes(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(f"{name} contains a lone surrogate; it must be valid Unicode.", param=name) from None
