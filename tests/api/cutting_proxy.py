"""A network that breaks: a proxy in front of a server that cuts connections in the middle of a response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class CuttingProxy:
    """Passes bytes on; of the requests for `/v1/`, the n-th loses its connection `cuts[n]` events into its response,
    with 0 behind the head of it.

    Attributes:
        may_cut: clear it to keep connections open, without further events, until it is set.
        heads: how those requests begin.
        num_cut: the number of connections that were cut.
    """

    def __init__(self, target: str, cuts: Sequence[int]) -> None:
        parts = urlsplit(target)
        self._address = parts.hostname, parts.port
        self._cuts = list(cuts)
        self.may_cut = asyncio.Event()
        self.may_cut.set()
        self.heads: list[str] = []
        self.num_cut = 0

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client; each asks for a connection of its own."""
        with suppress(OSError, EOFError):
            head = await reader.readuntil(b"\r\n\r\n")
            upstream, request = await asyncio.open_connection(*self._address)
            try:
                request.write(head.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
                sending = asyncio.create_task(_copy(reader, request))
                await self._answer(head, upstream, writer)
                sending.cancel()
            finally:
                request.transport.abort()
        writer.close()

    async def _answer(self, head: bytes, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        num_left = None
        if b" /v1/" in head.split(b"\r\n")[0]:
            self.heads.append(head.decode())
            num_left = self._cuts.pop(0) if self._cuts else None
        while piece := await upstream.read(2**16):
            *events, _ = piece.split(b"\n\n")
            if num_left is not None and len(events) >= num_left:
                if piece.startswith(b"HTTP/") and not num_left:
                    writer.write(b"".join(piece.partition(b"\r\n\r\n")[:2]))
                writer.write(b"".join(event + b"\n\n" for event in events[:num_left]))
                await writer.drain()
                await self.may_cut.wait()
                self.num_cut += 1
                break
            if num_left is not None:
                num_left -= len(events)
            writer.write(piece)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(2**16):
        writer.write(piece)


@asynccontextmanager
async def cutting(target: str, *cuts: int) -> AsyncIterator[tuple[str, CuttingProxy]]:
    """Stand in front of a server for the time of a block; yields the URL to use instead."""
    proxy = CuttingProxy(target, cuts)
    async with await asyncio.start_server(proxy.pass_on, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", proxy
        server.close()
