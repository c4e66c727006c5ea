"""Bodies that cost before they are rejected or admitted."""

from __future__ import annotations

import json
import random

from benchmarks.isolation.attack import EMBEDDINGS, LARGEST, chat
from benchmarks.isolation.attack_client import Client


def duplicate_keys() -> bytes:
    """As many keys as an object may have, and then one of them for the rest of the body."""
    keys = ",".join(f'"k{number}":0' for number in range(511))
    copies = ',"k":0' * ((LARGEST - len(keys)) // 6)
    return f"{{{keys}{copies}}}".encode()


def messages() -> bytes:
    """A conversation of 1,023 turns, 4 MB in all."""
    turns = [{"role": "user" if number % 2 == 0 else "assistant", "content": "a" * 3900} for number in range(1023)]
    return json.dumps({"messages": turns, "max_tokens": 1}).encode()


def short_messages() -> bytes:
    """As many messages as are allowed, of nearly as many parts of JSON as one body may have."""
    parts = [{"type": "text", "text": "a"}] * 5
    turns = [{"role": "user" if number % 2 == 0 else "assistant", "content": parts} for number in range(8191)]
    return json.dumps({"messages": turns, "max_tokens": 1}).encode()


def integer_calls() -> bytes:
    """A call of a tool whose arguments are 400 integers, each with as many digits as Python reads."""
    numbers = json.dumps({"values": [int("9" * 4299)] * 400})
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": numbers}}
    turns = [
        {"role": "user", "content": "What is Quire?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Nothing."},
    ]
    return json.dumps({"messages": turns, "max_tokens": 1}).encode()


async def stop_strings(client: Client) -> None:
    """Ask for 300 tokens with the longest stop strings and biases for 300 tokens."""
    stop = ["".join(random.choices("ab ", k=256)) for _ in range(16)]
    await client.post("/v1/chat/completions", chat(stop=stop, max_tokens=300, logit_bias=dict.fromkeys(range(300), -1)))


async def embeddings(client: Client) -> None:
    """Ask for the vectors of as many short texts as are allowed."""
    texts = [f"{random.random()} " + "word " * 40 for _ in range(256)]
    await client.post(EMBEDDINGS, json.dumps({"input": texts}).encode())


async def longest_embeddings(client: Client) -> None:
    """Ask for the vectors of inputs as long as the context, as many as fit into a body."""
    count = max(1, LARGEST // (6 * client.context))
    await client.post(EMBEDDINGS, _inputs(count, client.context - 64))


async def many_embeddings(client: Client) -> None:
    """Ask for the vectors of as many inputs as are allowed, with nearly as many tokens as one body may have."""
    await client.post(EMBEDDINGS, _inputs(256, min(2000, client.context - 64)))


async def tokenize(client: Client) -> None:
    """Tokenize a text that is nearly as long as the context."""
    text = " ".join(random.choices(("every", "good", "word"), k=client.context // 2))
    await client.post("/tokenize", json.dumps({"content": text, "with_pieces": True}).encode())


def _inputs(count: int, length: int) -> bytes:
    inputs = [random.choices(range(10, 3000), k=length) for _ in range(count)]
    return json.dumps({"input": inputs}, separators=(",", ":")).encode()
