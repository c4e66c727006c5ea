"""What an entry of the table of attacks is, and the chat bodies of several."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import cache
from typing import NamedTuple

from benchmarks.isolation.attack_client import Client
from benchmarks.isolation.setups import PLAIN, Setup

LARGEST = 4 * 1024 * 1024 - 4096
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"


class Attack(NamedTuple):
    """What each of `num_workers` does again and again, for as long as the row lasts, and the server that it needs.

    `num_open` is how many files the attacker and the server must be allowed to open, where they are many.
    """

    what: str
    run: Callable[[Client], Awaitable[object]]
    num_workers: int = 2
    setup: Setup = PLAIN
    num_open: int = 0


def posted(build: Callable[[], bytes], path: str = CHAT) -> Callable[[Client], Awaitable[object]]:
    """Return an attack that posts what `build` returns, made once: the attacker is to be quick."""
    made = cache(build)

    async def run(client: Client) -> None:
        await client.post(path, made())

    return run


def chat(content: object = "What is Quire?", **fields: object) -> bytes:
    """Return the body of a chat that goes on to its limit."""
    return question(content, ignore_eos=True, **fields)


def question(content: object = "What is Quire?", **fields: object) -> bytes:
    """Return the body of a chat that may end."""
    return json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode()
