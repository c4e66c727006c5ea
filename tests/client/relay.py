"""A relay between clients and a server, whose connections a test cuts: the network that is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

PIECE_BYTES = 65536


class Relay:
    """Passes bytes on between its own port and a server's.

    Attributes:
        url: its address.
        num_accepted: how many connections it has had.
        is_away: whether it ends each new connection at once.
        is_mute, is_deaf: whether it loses what the server sends, and what clients send.
    """

    def __init__(self, url: str) -> None:
        self.url = ""
        self.num_accepted = 0
        self.is_away = False
        self.is_mute = self.is_deaf = False
        self._port = urlsplit(url).port
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """End all connections, without a word."""
        for writer in self._writers:
            writer.transport.abort()

    def pass_to(self, url: str) -> None:
        """Pass new connections on to another server."""
        self._port = urlsplit(url).port

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Relay]:
        """Pass on for the time of the block."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_accepted += 1
        if self.is_away:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, far_writer}
        there = _pass_on(reader, far_writer, lambda: self.is_deaf)
        back = _pass_on(far_reader, writer, lambda: self.is_mute)
        await asyncio.gather(there, back)
        self._writers -= {writer, far_writer}


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_lost: Callable[[], bool]) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(PIECE_BYTES):
            if not is_lost():
                writer.write(piece)
                await writer.drain()
    writer.transport.abort()
