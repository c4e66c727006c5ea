"""Attacks by what single routes and fields accept: grammars, tools, embeddings, several prompts, tokenizing."""

from __future__ import annotations

import json
import random

from benchmarks.attack_client import Client
from benchmarks.attack_table import CHAT, COMPLETIONS, LARGEST, attack, body, chat

EMBEDDINGS, TOKENIZE, DETOKENIZE = "/v1/embeddings", "/tokenize", "/detokenize"

# --- Grammars: refused in little time, and slow while they are answered -----------------------------------------------


# A field of the body, and what it says; another word each time, or it would be compiled once.
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


def hostile_field() -> dict[str, str]:
    """One of the hostile grammars, which no request has had."""
    name, source = random.choice(HOSTILE)
    return {name: source.replace(WORD, str(random.randrange(10**12)))}


@attack("hostile schemas, regexes and grammars, each different", 4)
async def hostile_grammars(client: Client) -> None:
    content = [{"role": "user", "content": "What is Quire?"}]
    await client.post(CHAT, json.dumps({"messages": content, "max_tokens": 8, **hostile_field()}).encode())


@attack("n = 16 under an ambiguous grammar", 1)
async def ambiguous_grammar(client: Client) -> None:
    content = [{"role": "user", "content": "What is Quire?"}]
    fields = {"grammar": 'start: a\na: a a | "x"', "n": 16, "max_tokens": 1900, "logit_bias": {"1": -100, "2": -100}}
    await client.post(CHAT, json.dumps({"messages": content, **fields}).encode())


@attack("n = 16, and a grammar that leaves one next token nearly everywhere", 4)
async def forced_tokens(client: Client) -> None:
    content = [{"role": "user", "content": "What is Quire?"}]
    fields = {"regex": f"({random.randrange(10**9)} every good word ){{100,200}}", "n": 16, "max_tokens": 1900}
    await client.post(CHAT, json.dumps({"messages": content, **fields}).encode())


# --- Tools ------------------------------------------------------------------------------------------------------------


def tool(name: str, **fields: object) -> dict[str, object]:
    """A tool whose parameters have ten fields."""
    properties = {f"field{number}": {"type": "string", "maxLength": 40} for number in range(10)}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}


@body("4 MB of tools, which are too many bytes")
def tools_4mb() -> bytes:
    return chat(tools=[tool(f"f{number}", description="word " * (LARGEST // 700)) for number in range(128)])


@body("a tool whose schema is nested 100,000 deep")
def deep_tool() -> bytes:
    depth = 100_000
    parameters = '{"a":' * depth + "{}" + "}" * depth
    return chat(tools=[tool("f")]).replace(b'"parameters": {', b'"parameters": {"deep": %b, ' % parameters.encode())


@attack("a required call of a tool, each time another one", 4)
async def required_calls(client: Client) -> None:
    fields = {"tools": [tool(f"f{random.randrange(10**9)}")], "tool_choice": "required", "max_tokens": 64}
    content = [{"role": "user", "content": "What is Quire?"}]
    await client.post(CHAT, json.dumps({"messages": content, **fields}).encode())


# --- Several inputs in one body, and routes without an answer ---------------------------------------------------------


@attack("embeddings of 256 texts")
async def embeddings(client: Client) -> None:
    texts = [f"{random.random()} " + "word " * 40 for _ in range(256)]
    await client.post(EMBEDDINGS, json.dumps({"input": texts}).encode())


@attack("embeddings of inputs as long as the context, 4 MB of token ids")
async def longest_embeddings(client: Client) -> None:
    count = max(1, LARGEST // (6 * client.context))
    inputs = [[random.randrange(10, 3000) for _ in range(client.context - 64)] for _ in range(count)]
    await client.post(EMBEDDINGS, json.dumps({"input": inputs}).encode())


@attack("16 prompts in one completion, streamed")
async def prompts(client: Client) -> None:
    texts = [f"{random.random()} Tell me a story." for _ in range(16)]
    fields = {"max_tokens": 1000, "ignore_eos": True, "stream": True}
    await client.post(COMPLETIONS, json.dumps({"prompt": texts, **fields}).encode())


@body("4 MB to tokenize, which is too long", TOKENIZE)
def tokenize_4mb() -> bytes:
    return json.dumps({"prompt": "every good word " * (LARGEST // 16)}).encode()


@attack("texts to tokenize, nearly as long as the context, with their pieces", 4)
async def tokenize(client: Client) -> None:
    text = " ".join(random.choices(("every", "good", "word"), k=client.context // 2))
    await client.post(TOKENIZE, json.dumps({"content": text, "with_pieces": True}).encode())


@body("4 MB of token ids to decode", DETOKENIZE)
def detokenize_4mb() -> bytes:
    return json.dumps({"tokens": [7] * (LARGEST // 3)}).encode()
