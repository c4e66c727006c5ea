"""A crowd of clients of one kind that read in one way, opened and counted together."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from app.runtime.clock import monotonic
from app.server.sockets import reset_at_close
from benchmarks.streams.chat_client import ChatClient
from benchmarks.streams.control import Refused
from benchmarks.streams.http_client import HttpClient
from benchmarks.streams.readers import AnyReader, Client, Reader, SlowReader, StalledReader
from benchmarks.streams.script import seed_of
from benchmarks.streams.tally import Book, Tally, TextTally

SSE, NDJSON, WEBSOCKET = "sse", "ndjson", "ws"
PROMPT, STALL, SLOW, VANISH = "prompt", "stall", "slow", "vanish"
SMALL_BUFFER = 4096  # of readers that hardly read: so that it is the server which holds what they do not take
STAYS_S = (0.3, 1.5)  # how long one stays that vanishes and comes back
POLL_S, POKE_S, QUIET_S = 0.02, 0.1, 0.3
MAX_OPENING = 32


class Habit(NamedTuple):
    """What all clients of a crowd have in common; `scripted` streams name themselves in their seed."""

    kind: str
    mode: str
    per_socket: int
    speed: int
    scripted: bool
    body: dict[str, Any]


class Crowd:
    """Clients with the same habit. Loop only; `streams` yields numbers that nobody else uses."""

    def __init__(self, habit: Habit, port: int, streams: Iterator[int]) -> None:
        self.book = Book()
        self.num_returns = 0
        self._habit = habit
        self._port = port
        self._streams = streams
        self._readers: list[AnyReader] = []
        self._vanishing: list[asyncio.Task[None]] = []
        self._errors: list[str] = []

    @property
    def tallies(self) -> Iterator[Tally]:
        """The streams of all its clients that stay."""
        for reader in self._readers:
            yield from reader.client.tallies

    def check(self) -> None:
        """Raise what is wrong with the answers so far.

        Raises:
            Refused: some are; says how many, and of the first what.
        """
        if self._errors:
            raise Refused(f"{len(self._errors)} of {self._habit.kind}, {self._habit.mode}: {self._errors[0]}")

    async def open(self, num_streams: int) -> None:
        """Connect so many more streams."""
        if self._habit.mode == VANISH:
            first = len(self._vanishing)
            numbers = range(first, first + num_streams)
            self._vanishing += [asyncio.create_task(self._come_and_go(number)) for number in numbers]
            return
        per_socket = self._habit.per_socket
        sizes = [min(per_socket, num_streams - begin) for begin in range(0, num_streams, per_socket)]
        turns = asyncio.Semaphore(MAX_OPENING)

        async def connect(size: int) -> None:
            async with turns:
                self._readers.append(await self._connect(size))

        await asyncio.gather(*map(connect, sizes))

    def poke(self, now: float) -> None:
        """Let clients send what is due."""
        for reader in self._readers:
            reader.poke(now)

    def flow(self) -> None:
        """Let all read promptly from now on; those that come and go, go."""
        for task in self._vanishing:
            task.cancel()
        for reader in self._readers:
            reader.flow()

    async def drain(self) -> dict[int, int]:
        """Let all read until nothing has come for a while; return the tokens that have come for each stream."""
        self.flow()
        before, quiet_since = -1, monotonic()
        while monotonic() - quiet_since < QUIET_S:
            now = sum(reader.num_tokens for reader in self._readers)
            if now != before:
                before, quiet_since = now, monotonic()
            await asyncio.sleep(POLL_S)
        return {tally.stream: tally.number for tally in self.tallies}

    async def finish(self, within_s: float) -> None:
        """Wait until all streams have ended.

        Raises:
            Refused: some have not, or something else is wrong.
        """
        deadline = monotonic() + within_s
        while num_open := sum(not tally.is_done for tally in self.tallies):
            self.check()
            if monotonic() > deadline:
                raise Refused(f"{num_open} streams of {self._habit.kind} have not ended within {within_s:g} s")
            await asyncio.sleep(POLL_S)
        self.check()

    async def _connect(self, num_streams: int) -> AnyReader:
        habit, loop = self._habit, asyncio.get_running_loop()
        makers: dict[str, Callable[[Client, Callable[[str], None]], AnyReader]] = {
            STALL: StalledReader,
            SLOW: SlowReader,
        }
        make = makers.get(habit.mode, Reader)
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if habit.mode in (STALL, SLOW):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        try:
            await loop.sock_connect(connection, ("127.0.0.1", self._port))
            reader = make(self._client(num_streams), self._errors.append)
            await loop.create_connection(_giving(reader), sock=connection)
        except BaseException:  # also of a task that is cancelled
            connection.close()
            raise
        return reader

    def _client(self, num_streams: int) -> HttpClient | ChatClient:
        habit = self._habit
        make = Tally if habit.scripted else TextTally
        tallies = [make(next(self._streams), self.book) for _ in range(num_streams)]
        bodies = [
            habit.body | ({"seed": seed_of(tally.stream, habit.speed)} if habit.scripted else {}) for tally in tallies
        ]
        if habit.kind == WEBSOCKET:
            return ChatClient(tallies, bodies, self._port)
        return HttpClient(tallies[0], bodies[0], self._port, is_ndjson=habit.kind == NDJSON)

    async def _come_and_go(self, number: int) -> None:
        """Connect, stay for a while, reset the connection, and come back."""
        rng = random.Random(number)
        while True:
            try:
                reader = await self._connect(1)
            except OSError as error:
                self._errors.append(f"cannot connect: {error.strerror}")
                return
            try:
                await asyncio.sleep(rng.uniform(*STAYS_S))
            finally:
                assert isinstance(reader, Reader)
                _reset(reader)
            self.num_returns += 1


def _giving(reader: AnyReader) -> Callable[[], AnyReader]:
    return lambda: reader


def _reset(reader: Reader) -> None:
    """Cut a connection with a reset instead of an orderly end."""
    if reader.transport is not None and not reader.transport.is_closing():
        reset_at_close(reader.transport.get_extra_info("socket"))
    reader.leave()
