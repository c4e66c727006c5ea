"""How clients read: promptly, a few bytes a second, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from app.runtime.clock import monotonic
from benchmarks.streams.chat_client import ChatClient
from benchmarks.streams.control import Rejected
from benchmarks.streams.http_client import HttpClient

SLOW_BYTES, SLOW_INTERVAL_S = 100, 1.0
FULL_BYTES = 1 << 16

Client = HttpClient | ChatClient


class Reader(asyncio.Protocol):
    """Reads all bytes at once. `fail` is called with each error."""

    def __init__(self, client: Client, fail: Callable[[str], None]) -> None:
        self.client = client
        self.transport: asyncio.Transport | None = None
        self._fail = fail
        self._is_left = False

    @property
    def num_tokens(self) -> int:
        """The number of received tokens of all its streams."""
        return sum(check.number for check in self.client.checks)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it
        self.transport.write(self.client.opening)

    def data_received(self, data: bytes) -> None:
        """Read."""
        assert self.transport is not None
        try:
            answer = self.client.feed(data, monotonic())
        except (Rejected, ValueError, LookupError) as error:
            self._fail(f"{type(error).__name__}: {error}" if not isinstance(error, Rejected) else str(error))
            self.leave()
            return
        if answer:
            self.transport.write(answer)
        if self.client.is_over:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Report an early end."""
        self.client.mark_lost()
        if not self._is_left and not all(check.is_done for check in self.client.checks):
            self._fail(f"a connection ended after {self.num_tokens} tokens, before its streams had")

    def poke(self, now: float) -> None:
        """Send due frames."""
        if self.transport is None or self.transport.is_closing():
            return
        if due := self.client.poke(now):
            self.transport.write(due)

    def read_promptly(self) -> None:
        """Read promptly from now on, as this class always does."""

    def leave(self) -> None:
        """Abort the connection."""
        self._is_left = True
        if self.transport is not None:
            self.transport.abort()


class StalledReader(Reader):
    """Reads nothing after its streams have begun, until `read_promptly`."""

    def __init__(self, client: Client, fail: Callable[[str], None]) -> None:
        super().__init__(client, fail)
        self._reads_promptly = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request, and stop reading if the client may."""
        super().connection_made(transport)
        self._pause_reading()

    def data_received(self, data: bytes) -> None:
        """Read, and stop reading when the streams have begun."""
        super().data_received(data)
        self._pause_reading()

    def read_promptly(self) -> None:
        """Read all bytes from now on."""
        self._reads_promptly = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        assert self.transport is not None
        if not self._reads_promptly and self.client.is_reading and not self.transport.is_closing():
            self.transport.pause_reading()


class SlowReader(asyncio.BufferedProtocol):
    """Reads SLOW_BYTES a second after its streams have begun, until `read_promptly`."""

    def __init__(self, client: Client, fail: Callable[[str], None]) -> None:
        self._reader = Reader(client, fail)
        self.client = client
        self._buffer = bytearray(FULL_BYTES)
        self._reads_promptly = False

    @property
    def num_tokens(self) -> int:
        return self._reader.num_tokens

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._reader.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return a buffer for the next bytes, of the size that may be read."""
        is_slow = not self._reads_promptly and self.client.is_reading
        return memoryview(self._buffer)[: SLOW_BYTES if is_slow else FULL_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Read, then wait."""
        self._reader.data_received(bytes(self._buffer[:nbytes]))
        transport = self._reader.transport
        if not self._reads_promptly and transport is not None and not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(SLOW_INTERVAL_S if nbytes <= SLOW_BYTES else 0, self._resume)

    def connection_lost(self, error: Exception | None) -> None:
        self._reader.connection_lost(error)

    def poke(self, now: float) -> None:
        self._reader.poke(now)

    def read_promptly(self) -> None:
        """Read all bytes from now on."""
        self._reads_promptly = True
        self._resume()

    def leave(self) -> None:
        self._reader.leave()

    def _resume(self) -> None:
        transport = self._reader.transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()


AnyReader = Reader | SlowReader
