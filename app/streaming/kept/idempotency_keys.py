"""Idempotency keys: under one key of a client, the same request has one answer, however often it is sent.

The first request under a key is prepared while later ones wait for it in a line; then they read its stream. A first one
that is rejected, or whose answer is not kept, leaves nothing, and the next one in the line is prepared. A key lives as
long as its stream is kept.
"""

from __future__ import annotations

import asyncio
import string
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from app.contract.errors import IdempotencyConflict, Overloaded, RateLimitExceeded
from app.streaming.kept.live_stream import MAX_READERS, LiveStream

MAX_KEY_LENGTH = 255
KEY_RULE = f"a text of 1 to {MAX_KEY_LENGTH} visible ASCII characters"
MAX_WAITING = 64
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
    """The answer under a key, from its first request on.

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
        self._num_waiting: Counter[str] = Counter()  # by account

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for their turn."""
        return self._num_waiting.total()

    @asynccontextmanager
    async def claimed(self, name: KeyName, fingerprint: bytes) -> AsyncIterator[KeyedAnswer]:
        """Wait for the turn of a request, and have it for the block. Cancel-safe.

        If the answer has a stream, the request reads it. Else it is the first one: the block prepares it, and calls
        `keep` with its stream.

        Raises:
            IdempotencyConflict: the key was used for another request.
            RateLimitExceeded: as many requests wait for the first one as its stream may have readers.
            Overloaded: too many requests wait, each with its body, many of them for this account.
        """
        answer = self._answers.get(name)
        if answer is None:
            answer = self._answers[name] = KeyedAnswer(fingerprint)
        elif answer.fingerprint != fingerprint:
            raise IdempotencyConflict(
                "This idempotency key was used for another request; send a new key with a new request."
            )
        elif answer.num_users:
            self._check_waiting(name, answer)
        answer.num_users += 1
        try:
            with self._waiting(name.account):
                await answer.turn.acquire()
            try:
                yield answer
            finally:
                answer.turn.release()
        finally:
            answer.num_users -= 1
            if answer.stream is None and not answer.num_users:
                del self._answers[name]

    @contextmanager
    def _waiting(self, account: str) -> Iterator[None]:
        """Count a request of an account that waits for its turn."""
        self._num_waiting[account] += 1
        try:
            yield
        finally:
            self._num_waiting[account] -= 1
            if not self._num_waiting[account]:
                del self._num_waiting[account]

    def _check_waiting(self, name: KeyName, answer: KeyedAnswer) -> None:
        if answer.num_users > MAX_READERS:
            raise RateLimitExceeded(f"{MAX_READERS} requests wait for this idempotency key; try again later.")
        num_own = self._num_waiting[name.account]
        num_accounts = len(self._num_waiting) + (not num_own)
        if self.num_waiting >= MAX_WAITING and num_own >= MAX_WAITING // num_accounts:
            raise Overloaded("Too many requests wait for the first one with their idempotency key; try again later.")

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
