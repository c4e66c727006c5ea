"""Idempotency keys: under one key of a client, the same request has one answer, however often it is sent.

The first request under a key is prepared while later ones wait for it in a line; then they read its stream. A first one
that is rejected, or whose answer is not kept, leaves nothing, and the next one in the line is prepared. A key lives as
long as its stream is kept.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from app.contract.errors import IdempotencyConflict, RateLimitExceeded
from app.streaming.kept.live_stream import MAX_READERS, LiveStream

MAX_KEY_LENGTH = 255
KEY_RULE = f"a text of 1 to {MAX_KEY_LENGTH} visible ASCII characters"
KEY_BYTES = 1024  # about what a key and its entry take
_VISIBLE = frozenset(string.ascii_letters + string.digits + string.punctuation)


def is_idempotency_key(text: str) -> bool:
    """Return whether a text can be a key."""
    return 1 <= len(text) <= MAX_KEY_LENGTH and _VISIBLE.issuperset(text)


class KeyName(NamedTuple):
    """A key as the server knows it: clients of two accounts, and of two routes, may have equal ones."""

    account: str
    route: str
    key: str


@dataclass(slots=True)
class KeyedAnswer:
    """What is known of a key.

    Attributes:
        fingerprint: of the request.
        stream: the answer, once it is prepared and kept.
        turn: held by the one request that is prepared.
        num_users: the number of requests that are prepared or wait.
    """

    fingerprint: bytes
    stream: LiveStream | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_users: int = 0


class IdempotencyKeys:
    """The keys of one server. Loop only."""

    def __init__(self) -> None:
        self._answers: dict[KeyName, KeyedAnswer] = {}
        self._names: dict[str, KeyName] = {}  # by the id of the stream

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def num_requests(self) -> int:
        """The number of requests that are prepared or wait."""
        return sum(answer.num_users for answer in self._answers.values())

    @asynccontextmanager
    async def claimed(self, name: KeyName, fingerprint: bytes) -> AsyncIterator[KeyedAnswer]:
        """Wait for the turn of a request, and have it for the block. Cancel-safe.

        If the answer has a stream, the request reads it. Else it is the first one: the block prepares it, and calls
        `keep` with its stream.

        Raises:
            IdempotencyConflict: the key was used for another request.
            RateLimitExceeded: as many requests wait for the first one as its stream may have readers.
        """
        answer = self._answers.setdefault(name, KeyedAnswer(fingerprint))
        if answer.fingerprint != fingerprint:
            raise IdempotencyConflict(
                "This idempotency key was used for another request; send a new key with a new request."
            )
        if answer.num_users > MAX_READERS:
            raise RateLimitExceeded(f"{MAX_READERS} requests wait for this idempotency key; try again later.")
        answer.num_users += 1
        try:
            async with answer.turn:
                yield answer
        finally:
            answer.num_users -= 1
            if answer.stream is None and not answer.num_users:
                del self._answers[name]

    def keep(self, name: KeyName, stream: LiveStream) -> None:
        """Let a stream, which is kept, be the answer under the key of its request."""
        self._answers[name].stream = stream
        self._names[stream.id] = name

    def forget(self, stream: LiveStream) -> None:
        """Forget the key of a stream that is not kept any longer, if it has one."""
        name = self._names.pop(stream.id, None)
        if name is not None:
            answer = self._answers[name]
            answer.stream = None
            if not answer.num_users:
                del self._answers[name]
