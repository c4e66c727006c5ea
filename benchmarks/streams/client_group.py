"""A group of clients of one kind that read in the same way, opened and counted together."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from app.runtime.clock import monotonic
from app.server.sockets import reset_at_close
from benchmarks.streams import stream_apis
from benchmarks.streams.chat_client import ChatClient
from benchmarks.streams.control import Rejected
from benchmarks.streams.http_client import HttpClient
from benchmarks.streams.readers import AnyReader, Client, Reader, SlowReader, StalledReader
from benchmarks.streams.script import seed_of
from benchmarks.streams.stream_check import Recorder, StreamCheck, TextStreamCheck

SSE, NDJSON, WEBSOCKET, RESPONSES, MESSAGES = "sse", "ndjson", "ws", "responses", "messages"
RESUMABLE, WEBSOCKET_RESUMABLE = "sse-resumable", "ws-resumable"
APIS = {RESPONSES: stream_apis.RESPONSES, MESSAGES: stream_apis.MESSAGES}
PROMPT, STALL, SLOW, VANISH = "prompt", "stall", "slow", "vanish"
SMALL_BUFFER = 4096  # of slow readers, so that unread bytes wait in the server
STAYS_S = (0.3, 1.5)  # how long a vanishing client is connected
POLL_S, POKE_S = 0.02, 0.1
NUM_QUIET = 15  # looks without new bytes: time alone could pass while this process has no core
MAX_OPENING = 32


class ClientSettings(NamedTuple):
    """The settings of all clients of a group; the seed of a `scripted` stream contains its number.

    `source` is the address that they come from: on a server without keys each address is an account.
    """

    kind: str
    mode: str
    per_socket: int
    speed: int
    scripted: bool
    body: dict[str, Any]
    source: str = "127.0.0.1"


class ClientGroup:
    """Clients with the same settings. Loop only; `streams` yields unused numbers."""

    def __init__(self, settings: ClientSettings, port: int, streams: Iterator[int]) -> None:
        self.recorder = Recorder()
        self.num_returns = 0
        self._settings = settings
        self._port = port
        self._streams = streams
        self._readers: list[AnyReader] = []
        self._vanishing: list[asyncio.Task[None]] = []
        self._errors: list[str] = []

    @property
    def checks(self) -> Iterator[StreamCheck]:
        """The checks of all streams of clients that do not vanish."""
        for reader in self._readers:
            yield from reader.client.checks

    def raise_errors(self) -> None:
        """Raise the errors so far.

        Raises:
            Rejected: a client failed; the text has the number of failures and the first error.
        """
        if self._errors:
            raise Rejected(f"{len(self._errors)} of {self._settings.kind}, {self._settings.mode}: {self._errors[0]}")

    async def open(self, num_streams: int) -> None:
        """Connect `num_streams` more streams."""
        if self._settings.mode == VANISH:
            first = len(self._vanishing)
            numbers = range(first, first + num_streams)
            self._vanishing += [asyncio.create_task(self._reconnect_repeatedly(number)) for number in numbers]
            return
        per_socket = self._settings.per_socket
        sizes = [min(per_socket, num_streams - begin) for begin in range(0, num_streams, per_socket)]
        turns = asyncio.Semaphore(MAX_OPENING)

        async def connect(size: int) -> None:
            async with turns:
                self._readers.append(await self._connect(size))

        await asyncio.gather(*map(connect, sizes))

    def poke(self, now: float) -> None:
        """Let clients send due frames."""
        for reader in self._readers:
            reader.poke(now)

    def read_promptly(self) -> None:
        """Let all clients read promptly from now on; vanishing clients end."""
        for task in self._vanishing:
            task.cancel()
        for reader in self._readers:
            reader.read_promptly()

    async def drain(self) -> dict[int, int]:
        """Let all clients read until NUM_QUIET looks find no new bytes; return the last token of each stream."""
        self.read_promptly()
        before, num_quiet = -1, 0
        while num_quiet < NUM_QUIET:
            now = sum(reader.num_tokens for reader in self._readers)
            before, num_quiet = now, num_quiet + 1 if now == before else 0
            await asyncio.sleep(POLL_S)
        return {check.stream: check.number for check in self.checks}

    async def finish(self, within_s: float) -> None:
        """Wait until all streams have ended.

        Raises:
            Rejected: some have not ended in time, or a client failed.
        """
        deadline = monotonic() + within_s
        while num_open := sum(not check.is_done for check in self.checks):
            self.raise_errors()
            if monotonic() > deadline:
                raise Rejected(f"{num_open} streams of {self._settings.kind} have not ended within {within_s:g} s")
            await asyncio.sleep(POLL_S)
        self.raise_errors()

    async def _connect(self, num_streams: int) -> AnyReader:
        settings, loop = self._settings, asyncio.get_running_loop()
        makers: dict[str, Callable[[Client, Callable[[str], None]], AnyReader]] = {
            STALL: StalledReader,
            SLOW: SlowReader,
        }
        make = makers.get(settings.mode, Reader)
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if settings.mode in (STALL, SLOW):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        reader = make(self._client(num_streams), self._errors.append)
        try:
            connection.bind((settings.source, 0))
            await loop.sock_connect(connection, ("127.0.0.1", self._port))
            await loop.create_connection(_giving(reader), sock=connection)
        except BaseException:  # also if the task is cancelled, perhaps after the transport was made
            reader.leave()
            connection.close()
            raise
        return reader

    def _client(self, num_streams: int) -> HttpClient | ChatClient:
        settings = self._settings
        make = StreamCheck if settings.scripted else TextStreamCheck
        checks = [make(next(self._streams), self.recorder) for _ in range(num_streams)]
        bodies = [
            settings.body | ({"seed": seed_of(check.stream, settings.speed)} if settings.scripted else {})
            for check in checks
        ]
        if settings.kind in (WEBSOCKET, WEBSOCKET_RESUMABLE):
            return ChatClient(checks, bodies, self._port, is_resumable=settings.kind == WEBSOCKET_RESUMABLE)
        return HttpClient(
            checks[0],
            bodies[0],
            self._port,
            is_ndjson=settings.kind == NDJSON,
            is_resumable=settings.kind == RESUMABLE,
            api=APIS.get(settings.kind, stream_apis.CHAT),
        )

    async def _reconnect_repeatedly(self, number: int) -> None:
        """Connect, stay for a random time, reset the connection, and connect again."""
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
    """Reset a connection."""
    if reader.transport is not None and not reader.transport.is_closing():
        reset_at_close(reader.transport.get_extra_info("socket"))
    reader.leave()
