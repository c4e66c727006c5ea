"""The new requests of the good client: a chat, a schema and an embedding in turn, one at a time, for ever."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from typing import Any, NamedTuple

import orjson

from app.loadgen.target import Target
from app.streaming.sse_format import SseDecoder
from benchmarks.api_client import ApiClient, Body

GIVE_UP_S = 10.0  # a request without its first token counts as this long
PAUSE_S = 0.05  # this client is no flood
NUM_TOKENS = 16
_TEXT = re.compile(rb'"content":"[^"]')


class FirstToken(Body):
    """Parses a response, and notes when its first text came: of a body that is no stream, the end.

    Attributes:
        at: when, as `time.perf_counter`; None before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.at: float | None = None
        self._now = 0.0

    def feed(self, piece: bytes, now: float) -> None:
        self._now = now
        super().feed(piece, now)

    def on_body(self, body: bytes) -> None:
        """Keep the next bytes, and look for text; called by the parser."""
        super().on_body(body)
        if self.at is None and _TEXT.search(self.content):
            self.at = self._now

    def on_message_complete(self) -> None:
        """Note the end; called by the parser."""
        super().on_message_complete()
        self.at = self._now if self.at is None else self.at


class Kind(NamedTuple):
    """A kind of new request: how one is made, and what is wrong with its answer, or an empty text."""

    path: str
    fields: Callable[[], dict[str, Any]]
    fault: Callable[[bytes], str]


class NewRequests:
    """Sends new requests of each kind in turn. Loop only.

    Attributes:
        waits: the seconds until the first token of each, by kind.
    """

    def __init__(self, target: Target) -> None:
        self.waits: dict[str, list[float]] = {}
        self._target = target
        self._open: tuple[str, float, FirstToken] | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what was measured."""
        self.waits = {name: [] for name in KINDS}

    def longest(self) -> dict[str, float | None]:
        """Return the longest wait of each kind, that of the open request included; None where there is none."""
        waits = {name: list(found) for name, found in self.waits.items()}
        if self._open is not None:
            name, began, reader = self._open
            waits[name].append((reader.at or time.perf_counter()) - began)
        return {name: max(found, default=None) for name, found in waits.items()}

    async def run(self) -> None:
        """Send for ever.

        Raises:
            RuntimeError: a request is rejected, or its answer is not what it must be.
            OSError: the connection fails.
        """
        for name in cycle(KINDS):
            await self.ask(name)
            await asyncio.sleep(PAUSE_S)

    async def ask(self, name: str) -> None:
        """Send one request of a kind; raises as `run`."""
        kind, reader, began = KINDS[name], FirstToken(), time.perf_counter()
        self._open = name, began, reader
        message = self._target.post(kind.path, orjson.dumps(kind.fields()))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(GIVE_UP_S):
                    await ApiClient(self._target, GIVE_UP_S).exchange(message, reader)
            self.waits[name].append((reader.at or time.perf_counter()) - began)
        finally:
            self._open = None
        if reader.at is not None and (fault := _fault(kind, reader)):
            raise RuntimeError(f"a new request ({name}) has failed: {fault}")


def _fault(kind: Kind, reader: FirstToken) -> str:
    if reader.status != 200:
        return f"status {reader.status}, {reader.content[:300]!r}"
    try:
        return kind.fault(reader.content) if reader.is_over else ""
    except (ValueError, LookupError, TypeError):
        return f"the answer is {reader.content[:300]!r}"


def _question(**fields: Any) -> dict[str, Any]:
    content = f"Question {random.randrange(10**9)}: what is Quire?"
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "stream": True, **fields}


def _chat() -> dict[str, Any]:
    return _question(max_tokens=NUM_TOKENS, ignore_eos=True)


def _schema() -> dict[str, Any]:
    """Return a question with a schema that no other one has, so that it must be compiled."""
    properties = {
        f"answer{random.randrange(10**9)}": {"enum": ["yes", "no"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    }
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return _question(max_tokens=128, response_format=form)


def _embedding() -> dict[str, Any]:
    return {"input": f"Text {random.randrange(10**9)} about a stream of words."}


def _answer(content: bytes) -> tuple[str, str]:
    """Return the text of a stream and its finish reason."""
    *events, done = SseDecoder().feed(content)
    choices = [choice for event in events for choice in orjson.loads(event)["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, str(choices[-1]["finish_reason"]) if done == "[DONE]" else "no mark of the end"


def _chat_fault(content: bytes) -> str:
    text, reason = _answer(content)
    return "" if text and reason == "length" else f"the answer {text!r} ended with {reason}"


def _schema_fault(content: bytes) -> str:
    text, reason = _answer(content)
    if reason == "stop":
        answer, count = orjson.loads(text).values()
        if answer in ("yes", "no") and 0 <= count <= 99:
            return ""
    return f"the answer {text!r} ended with {reason}"


def _embedding_fault(content: bytes) -> str:
    vector = orjson.loads(content)["data"][0]["embedding"]  # raises where a number is none
    return "" if vector and any(vector) else "the vector is empty or zero"


KINDS = {
    "chat": Kind("/v1/chat/completions", _chat, _chat_fault),
    "schema": Kind("/v1/chat/completions", _schema, _schema_fault),
    "embedding": Kind("/v1/embeddings", _embedding, _embedding_fault),
}
