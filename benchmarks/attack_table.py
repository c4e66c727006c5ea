"""The table of attacks: what `attacks` and `api_attacks` enter, and the chat bodies of both."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import cache
from typing import NamedTuple

from benchmarks.attack_client import Client

LARGEST = 4 * 1024 * 1024 - 4096
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Attack(NamedTuple):
    """What each of `num_workers` does again and again."""

    what: str
    run: Callable[[Client], Awaitable[None]]
    num_workers: int = 2


ATTACKS: dict[str, Attack] = {}


def attack(what: str, num_workers: int = 2) -> Callable[[Callable[[Client], Awaitable[None]]], None]:
    """Register an attack under the name of its function."""

    def register(run: Callable[[Client], Awaitable[None]]) -> None:
        ATTACKS[run.__name__] = Attack(what, run, num_workers)

    return register


def body(what: str, path: str = CHAT) -> Callable[[Callable[[], bytes]], None]:
    """Register an attack that posts what the function returns, made once: the attacker is to be quick."""

    def register(build: Callable[[], bytes]) -> None:
        made = cache(build)
        ATTACKS[build.__name__] = Attack(what, lambda client: client.post(path, made()), 4)

    return register


def chat(content: object = "What is Quire?", **fields: object) -> bytes:
    """A chat body."""
    return json.dumps({"messages": [{"role": "user", "content": content}], "ignore_eos": True, **fields}).encode()
