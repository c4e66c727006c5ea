"""Attacks by grammars and tools: costly to read, to compile, at the first mask, or at the fortieth.

Each request has another grammar, or it would be compiled once; of what the server rejects it remembers the reason.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

from benchmarks.isolation.attack import CHAT, TOKENIZE, question
from benchmarks.isolation.attack_client import Client

# A field of the body, and what it says, with a word that is another one each time.
WORD = "WORD"
HOSTILE = (
    ("regex", "(((a{1,60}b?){1,60}c?){1,60}d?){1,60}WORD"),
    ("regex", "WORD|" + "|".join(f"(a{number}b*)+c" for number in range(4000))),
    ("guided_json", json.dumps({"enum": ["WORD", *(f"v{number}" for number in range(400))]})),
    ("json_schema", json.dumps({"enum": ["WORD", *(f"v{number}" for number in range(7000))]}, separators=(",", ":"))),
    ("guided_grammar", "root ::= " + "(" * 60 + '"WORD"' + " )*" * 60),
    (
        "grammar",
        "\n".join(['root ::= "WORD" r0', *(f'r{number} ::= "a" r{(number + 1) % 399} | "b"' for number in range(399))]),
    ),
    ("ebnf", 'start: "WORD" | ' + " | ".join(f'"w{number}" start?' for number in range(3500))),
)
# Primes: a digit more each costs 4 to 10 times as much.
MULTIPLES = (999_983, 3_999_971, 49_999_991)
NUM_PATTERNS, NUM_PARTS = 24, 40
HANG_UP_S = 1.0  # the client of a costly grammar need not wait for what it has caused


def hostile_field() -> dict[str, str]:
    """One of the hostile grammars, which no request has had."""
    name, source = random.choice(HOSTILE)
    return {name: source.replace(WORD, _word())}


async def hostile_grammars(client: Client) -> None:
    """Ask for an answer under one of the hostile grammars."""
    await client.post(CHAT, question(max_tokens=8, **hostile_field()))


async def ambiguous_grammar(client: Client) -> None:
    """Ask for 16 answers under a grammar that reads each text in many ways."""
    bias = {"1": -100, "2": -100}
    await client.post(CHAT, question(grammar='start: a\na: a a | "x"', n=16, max_tokens=1900, logit_bias=bias))


async def rules_with_parameters(client: Client) -> None:
    """Ask for an answer under a rule that goes through all sets of 12 bits, which the first token begins.

    It is compiled in milliseconds, and then the row behind its first token takes more than a second.
    """
    sets = "".join(f' | p::set_bit({bit}) "{chr(97 + bit)}" %if bit_clear({bit})' for bit in range(12))
    grammar = f'start: <[0-255]> q\nq: p::0 | "{_word()}"\np::_: ""{sets}'
    await client.post(CHAT, question(max_tokens=8, grammar=grammar))


async def forced_tokens(client: Client) -> None:
    """Ask for 16 answers of which most tokens are certain."""
    await client.post(CHAT, question(regex=f"({_word()} every good word ){{100,200}}", n=16, max_tokens=1900))


async def multiple_of(client: Client) -> None:
    """Ask for an integer that a large prime divides, whose grammar has as many states as the prime is large."""
    schema = {"type": "integer", "multipleOf": random.choice(MULTIPLES), "minimum": -random.randrange(10**12)}
    await client.post(CHAT, _schema_question(schema), HANG_UP_S)


async def and_compile(client: Client) -> None:
    """Ask for a text that 40 expressions must match at once."""
    parts = [f"/(?s:.*)k{number}{_word()}(?s:.*)/" for number in range(NUM_PARTS)]
    await client.post(CHAT, question(grammar=f"start: T\nT: {' & '.join(parts)}", max_tokens=8), HANG_UP_S)


async def and_mask(client: Client) -> None:
    """Ask for a text under `allOf` patterns, which compile at once; the mask after 40 letters takes 2^n steps."""
    await client.post(CHAT, _schema_question({"type": "string", "allOf": _patterns()}, **await _bias(client)))


async def ref_mask(client: Client) -> None:
    """The same patterns, each behind the reference of the one before."""
    patterns = [{"type": "string", **pattern} for pattern in _patterns()]
    links = [{**pattern, "$ref": f"#/$defs/d{number + 1}"} for number, pattern in enumerate(patterns[:-1])]
    schema = {"$ref": "#/$defs/d0", "$defs": {f"d{number}": link for number, link in enumerate([*links, patterns[-1]])}}
    await client.post(CHAT, _schema_question(schema, **await _bias(client)))


async def json_in_lark(client: Client) -> None:
    """The same patterns as a schema inside a Lark grammar."""
    grammar = "start: %json " + json.dumps({"type": "string", "allOf": _patterns()})
    await client.post(CHAT, question(grammar=grammar, max_tokens=64, temperature=0, **await _bias(client)))


async def counted_masks(client: Client) -> None:
    """Ask for 16 answers under an expression that counts in many places at once: each mask is slow."""
    await client.post(CHAT, question(regex=f"(.*a.{{200}})+{_word()}", n=16, max_tokens=400, temperature=1))


async def shared_lexer(client: Client) -> None:
    """Ask for 16 answers under an expression with many states, which all requests have: none of them may fail."""
    await client.post(CHAT, question(regex="(.*a.{100})+WORD", n=16, max_tokens=60, temperature=1))


def nested_conditions() -> str:
    """The text of a schema with 18 levels of conditions, and references that lead through them; it has a WORD."""
    inner: dict[str, object] = {"$defs": {WORD: {}}}
    for _ in range(18):
        inner = {"$defs": {"a": {"then": inner, "if": True}}}
    schema = {"type": "string", "maxLength": 4, "$defs": {"reference": {"$ref": "#/then"}, "conditions": inner}}
    return json.dumps(schema, separators=(",", ":"))


async def conditions(client: Client) -> None:
    """Ask for an answer under nested conditions, which no request has had."""
    schema = nested_conditions().replace(WORD, _word())
    await client.post(CHAT, question(structured_outputs={"json": schema}, max_tokens=4), HANG_UP_S)


async def new_schemas(client: Client) -> None:
    """Ask for one token under a small ordinary schema that no request has had."""
    schema = {"type": "object", "properties": {f"field{_word()}": {"type": "boolean"}}}
    await client.post(CHAT, _schema_question(schema, max_tokens=1))


async def gbnf_brackets(client: Client) -> None:
    """Send GBNF of brackets that are never closed."""
    await client.post(CHAT, question(grammar=f'root ::= "{_word()}" ' + "[" * 65_000))


def tool(name: str, num_fields: int = 10, **fields: object) -> dict[str, object]:
    """Return a tool whose parameters have that many fields."""
    properties = {f"field{number}": {"type": "string", "maxLength": 40} for number in range(num_fields)}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}


def deep_tool() -> bytes:
    """A tool whose schema is nested 100,000 deep."""
    depth = 100_000
    parameters = '{"a":' * depth + "{}" + "}" * depth
    body = question(tools=[tool("f")], ignore_eos=True)
    return body.replace(b'"parameters": {', b'"parameters": {"deep": %b, ' % parameters.encode())


async def required_calls(client: Client) -> None:
    """Ask for a call of a tool that no request has had."""
    await client.post(CHAT, question(tools=[tool(f"f{_word()}")], tool_choice="required", max_tokens=64))


async def many_tools(client: Client) -> None:
    """Ask for a call of one of as many tools as the size of their grammar allows, none of which a request has had."""
    word = _word()
    tools = [tool(f"f{number}_{word}", 3) for number in range(100)]
    await client.post(CHAT, question(tools=tools, tool_choice="required", max_tokens=16))


def _word() -> str:
    return str(random.randrange(10**12))


def _schema_question(schema: Mapping[str, object], **fields: object) -> bytes:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return question(response_format=form, **{"max_tokens": 64, "temperature": 0, **fields})


def _patterns() -> list[dict[str, str]]:
    word = _word()
    return [{"pattern": f"^(z*q|z{{40}}(.*)k{number}{word}(.*))$"} for number in range(NUM_PATTERNS)]


async def _bias(client: Client) -> dict[str, object]:
    """Return the bias that makes the answer repeat one letter."""
    found = json.loads(await client.ask(TOKENIZE, json.dumps({"content": "zz"}).encode()) or b"{}").get("tokens")
    return {"logit_bias": {str(found[-1]): 100}} if found else {}
