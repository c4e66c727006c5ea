"""Compiles grammars under limits that are the same on every machine: counts, never time.

The library never raises for a grammar that it rejects, and a grammar that no text satisfies compiles: only its first
mask is an error. So the first mask is made here, too, which also warms up the lexer.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.grammar_sources import lark_of_regex, lark_source
from app.text.grammar.json_schemas import checked_schema
from app.text.grammar.lark_rules import check_lark, checked_lark
from app.text.grammar.vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_REASON_CHARS = 300
# An ambiguous grammar may cost as many steps for each token as there are items in a row of its parser. Choices have an
# item each, and like schemas they are not ambiguous.
MAX_ITEMS, LARK_ITEMS = 2000, 300
STEP_FUEL, AGAIN_FUEL = 50_000, 200_000
"""The most work of a lexer for a mask and the tokens behind it, of a grammar that is compiled again the latter: it has
done nothing yet of what the masks before would have done. The former takes 5 ms at most, but for intersections."""
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 500_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
MAX_BLANKS = 2
_AFTER_REASONING = rf"/[ \n]{{0,{MAX_BLANKS}}}/ @answer"


def compile_grammar(grammar: Grammar, vocabulary: GrammarVocabulary, step_fuel: int = STEP_FUEL) -> LLMatcher:
    """Return a matcher at the beginning of a grammar, whose first masks were computed. Any thread.

    Raises:
        InvalidValue: the grammar is rejected, too large, or satisfied by no text that ends; `param` is set only for
            Lark and GBNF.
    """
    import llguidance

    if grammar.block:
        compile_grammar(replace(grammar, block=""), vocabulary)  # to check the beginning of the answer itself
    body = _body(grammar)
    rules = [body]
    if grammar.follows_reasoning:
        block = "block " if grammar.block else ""
        start = f"start: {block}{_AFTER_REASONING}\n{grammar.block}"
        rules = [{"lark_grammar": start}, {"name": "answer", **body}]
    is_ours = grammar.kind in (GrammarKind.JSON_SCHEMA, GrammarKind.CALLS, GrammarKind.CHOICE)
    items = MAX_ITEMS if is_ours else LARK_ITEMS
    limits = llguidance.LLParserLimits(max_items_in_row=items, step_lexer_fuel=step_fuel, **LIMITS)
    source = orjson.dumps({"grammars": rules}).decode()
    matcher = llguidance.LLMatcher(vocabulary.backend, source, log_level=0, limits=limits)
    if matcher.is_error():
        raise InvalidValue(f"{error_of(matcher)}.")
    if grammar.follows_reasoning and not grammar.block and vocabulary.newline_id is not None:
        # The first mask allows blanks whatever follows; the one behind them says whether anything does.
        behind_blanks = matcher.deep_copy()
        behind_blanks.consume_tokens([vocabulary.newline_id] * MAX_BLANKS)
        _check_start(behind_blanks)
    _check_start(matcher)  # last, because copies share a lexer, which may have come to its limit
    return matcher


def _check_start(matcher: LLMatcher) -> None:
    """Reject a grammar that nothing can satisfy from here on, or whose next token reaches a limit if it is certain.

    The mask comes first: making it frees the interpreter's lock, and does most of the work of what follows.
    """
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    if matcher.is_error():
        raise InvalidValue(f"{error_of(matcher)}.")
    if not mask:
        raise InvalidValue("No text of this model's tokens satisfies it.")
    if mask.bit_count() == 1:
        first = matcher.deep_copy()
        first.consume_token(mask.bit_length() - 1)
        if first.is_error():
            raise InvalidValue(f"{error_of(first)}.")


def _body(grammar: Grammar) -> dict[str, Any]:
    """Return a grammar in the library's own form."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return {"json_schema": checked_schema(grammar.source)}
        case GrammarKind.REGEX:
            return {"lark_grammar": lark_of_regex(grammar.source)}
        case GrammarKind.CHOICE:
            choices = [orjson.dumps(choice).decode() for choice in orjson.loads(grammar.source)]
            # The library reads no such character in a text.
            return {"lark_grammar": f"start: {' | '.join(choices)}".replace("\x7f", r"\u007f")}
        case GrammarKind.LARK:
            return {"lark_grammar": checked_lark(lark_source(grammar))}
        case GrammarKind.CALLS:
            source = lark_source(grammar)
            check_lark(source)
            return {"lark_grammar": source}


# What the library's errors begin with, in small letters, and the same in our words.
_OURS = {
    "noextension": "No text satisfies it",
    "parsertoocomplex": "It has too many alternatives or readings at one place",
    "parser error: current row has": "It has too many alternatives or readings at one place",
    "lexertoocomplex": "Its regular expressions are too complex",
    "parser error: too many items": "It demands a text that is too long, or never ends",
    "lexer error: too many": "Its regular expressions are too complex",
    "lexer precomputation failed": "Its regular expressions are too complex",
    "fuel exhausted": "Its regular expressions are too complex",
    "unable to determine if regex is empty": "Its regular expressions are too complex",
    "too many states": "Its regular expressions are too complex",
    "initial lexer configuration (grammar) too big": "It is too large",
    "grammar size (number of symbols) too big": "It is too large",
    "decimal literal invalid": f"It has a number of repetitions or characters that is too large; at most {2**32 - 1} "
    "are allowed",
    "error parsing signed integer": f"It has a number that is too large; at most {2**31 - 1} repetitions are allowed",
    "exceed the maximum number of nested": "It has too many nested brackets, or a number with too many digits",
    "panic: ": "The grammar library fails at it",
    "failed to generate regex for": "It has a minimum or maximum that is too large; use one of at most 18 digits",
}
_POSITION = re.compile(r"^(?:at )?\d+\(\d+\): (?:failed to compile JSON schema: )?")


def error_of(matcher: LLMatcher) -> str:
    """Return why a matcher is in error, without a full stop: in our words, or those of the library's first line.

    The first line of an error in a regular expression is not the first one of its text.
    """
    lines = [line.strip() for line in matcher.get_error().splitlines()] or ["unknown error"]
    first = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    begin = _POSITION.sub("", first).lower()
    first = next((ours for theirs, ours in _OURS.items() if begin.startswith(theirs)), first)
    return (first[:1].upper() + first[1:MAX_REASON_CHARS]).rstrip(". ")
