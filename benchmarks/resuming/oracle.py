"""The undisturbed answers that all others are compared with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import orjson

from app.loadgen.target import Target
from benchmarks.resuming.answer_reader import AnswerReader
from benchmarks.resuming.asked import WEBSOCKET, Asked
from benchmarks.resuming.http_answer import HttpAnswer
from benchmarks.resuming.socket_answer import SocketAnswer
from benchmarks.resuming.told import Told


def reader_of(asked: Asked, target: Target, *, is_kept: bool = True) -> AnswerReader:
    """Return a client that reads promptly."""
    return (SocketAnswer if asked.kind == WEBSOCKET else HttpAnswer)(asked, target, is_kept=is_kept)


class Oracle:
    """Knows the answers: those of a request are equal in any company, so each is asked for once."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, bytes], Told] = {}

    async def learn(self, requests: Iterable[Asked], target: Target, *, num_at_once: int = 8) -> None:
        """Read the answers of a server that nobody disturbs. Raises as `AnswerReader.read`.

        They are kept there, so that their positions are those of clients that come back.
        """
        turns = asyncio.Semaphore(num_at_once)

        async def read(asked: Asked) -> None:
            async with turns:
                reader = reader_of(asked, target)
                await reader.read()
                self._answers[_key(asked)] = reader.told

        await asyncio.gather(*map(read, requests))

    def whole(self, asked: Asked) -> Told:
        """Return the answer to a request that was learned."""
        return self._answers[_key(asked)]

    def num_tokens(self, requests: Iterable[Asked]) -> int:
        """Return the tokens that clients receive with the answers to requests."""
        return sum(sum(self.whole(asked).positions) for asked in requests)


def _key(asked: Asked) -> tuple[str, bytes]:
    return asked.kind, orjson.dumps(asked.body, option=orjson.OPT_SORT_KEYS)
