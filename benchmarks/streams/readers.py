"""How clients read: promptly, a few bytes a second, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from app.runtime.clock import monotonic
from benchmarks.streams.chat_client import ChatClient
from benchmarks.streams.control import Refused
from benchmarks.streams.http_client import HttpClient

SLOW_BYTES, SLOW_INTERVAL_S = 100, 1.0
FULL_BYTES = 1 << 16

Client = HttpClient | ChatClient


class Reader(asyncio.Protocol):
    """Reads all there is at once. `fail` is told what is wrong with the answers."""

    def __init__(self, client: Client, fail: Callable[[str], None]) -> None:
        self.client = client
        self.transport: asyncio.Transport | None = None
        self._fail = fail
        self._is_left = False

    @property
    def num_tokens(self) -> int:
        """How many tokens have come, of all its streams."""
        return sum(tally.number for tally in self.client.tallies)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it
        self.transport.write(self.client.opening)

    def data_received(self, data: bytes) -> None:
        """Read."""
        assert self.transport is not None
        try:
            answer = self.client.feed(data, monotonic())
        except (Refused, ValueError, LookupError) as error:
            self._fail(f"{type(error).__name__}: {error}" if not isinstance(error, Refused) else str(error))
            self.leave()
            return
        if answer:
            self.transport.write(answer)
        if self.client.is_over:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell when it was too early."""
        self.client.lose()
        if not self._is_left and not all(tally.is_done for tally in self.client.tallies):
            self._fail(f"a connection ended after {self.num_tokens} tokens, before its streams had")

    def poke(self, now: float) -> None:
        """Send what is due."""
        if self.transport is None or self.transport.is_closing():
            return
        if due := self.client.poke(now):
            self.transport.write(due)

    def flow(self) -> None:
        """Read like others do from now on."""

    def leave(self) -> None:
        """Cut the connection, whatever is on its way."""
        self._is_left = True
        if self.transport is not None:
            self.transport.abort()


class StalledReader(Reader):
    """Reads nothing once its streams are under way, until `flow`."""

    def __init__(self, client: Client, fail: Callable[[str], None]) -> None:
        super().__init__(client, fail)
        self._is_flowing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask, and look away if nothing needs to be read."""
        super().connection_made(transport)
        self._look_away()

    def data_received(self, data: bytes) -> None:
        """Read, and look away once the streams are under way."""
        super().data_received(data)
        self._look_away()

    def flow(self) -> None:
        """Read all there is from now on."""
        self._is_flowing = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _look_away(self) -> None:
        assert self.transport is not None
        if not self._is_flowing and self.client.is_reading and not self.transport.is_closing():
            self.transport.pause_reading()


class SlowReader(asyncio.BufferedProtocol):
    """Reads SLOW_BYTES a second once its streams are under way, until `flow`."""

    def __init__(self, client: Client, fail: Callable[[str], None]) -> None:
        self._reader = Reader(client, fail)
        self.client = client
        self._buffer = bytearray(FULL_BYTES)
        self._is_flowing = False

    @property
    def num_tokens(self) -> int:
        """See Reader."""
        return self._reader.num_tokens

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._reader.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: as many as may be read."""
        is_slow = not self._is_flowing and self.client.is_reading
        return memoryview(self._buffer)[: SLOW_BYTES if is_slow else FULL_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Read, then wait."""
        self._reader.data_received(bytes(self._buffer[:nbytes]))
        transport = self._reader.transport
        if not self._is_flowing and transport is not None and not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(SLOW_INTERVAL_S if nbytes <= SLOW_BYTES else 0, self._resume)

    def connection_lost(self, error: Exception | None) -> None:
        """See Reader."""
        self._reader.connection_lost(error)

    def poke(self, now: float) -> None:
        """See Reader."""
        self._reader.poke(now)

    def flow(self) -> None:
        """Read all there is from now on."""
        self._is_flowing = True
        self._resume()

    def leave(self) -> None:
        """See Reader."""
        self._reader.leave()

    def _resume(self) -> None:
        transport = self._reader.transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()


AnyReader = Reader | SlowReader
