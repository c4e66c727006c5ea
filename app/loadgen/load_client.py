"""The client: one connection for each request, opened when the request is sent and closed when it is answered.

The time to connect is part of the measurement: a server that accepts connections slowly is slow. Proxies are not used.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from app.loadgen.answer import Answer, AnswerReader
from app.loadgen.load import Request
from app.loadgen.target import Target, reason

READ_BYTES = 65536


class Reader(Protocol):
    """Parses the bytes of an answer."""

    is_over: bool

    def connected(self, now: float) -> None:
        """Note that the connection was open at `now`."""

    def feed(self, piece: bytes, now: float) -> None:
        """Parse the next bytes, which arrived at `now`; set `is_over` when no more bytes are needed."""


class Client:
    """Sends requests to one server, any number of them concurrently."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s

    async def send(self, request: Request, answer: Answer) -> None:
        """Send a request, and record its answer or failure in `answer`. Cancelling closes the connection."""
        reader = AnswerReader(answer, request.cancel_after)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self.exchange(request.message, reader)
        except TimeoutError:
            answer.fail("timed out", f"no end of the answer after {self._timeout_s:g} s", time.perf_counter())
        except OSError as error:
            what = "cut" if answer.connected else "no connection"
            answer.fail(what, reason(error), time.perf_counter())
        reader.end(time.perf_counter())

    async def exchange(self, message: bytes, reader: Reader) -> None:
        """Send a message on a new connection, and feed `reader` until it is over or the peer closes. Raises OSError."""
        stream, writer = await asyncio.open_connection(**self._target.connecting)
        try:
            reader.connected(time.perf_counter())
            writer.write(message)
            while not reader.is_over and (piece := await stream.read(READ_BYTES)):
                reader.feed(piece, time.perf_counter())
        finally:
            writer.transport.abort()  # a graceful close would wait for a peer that does not read
