"""A server for tests of attacks: it answers everything with the same response, and notes who asked for what."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

REJECTED = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


class AttackServer:
    """Listens on 127.0.0.1; `heads` are the beginnings of the requests, `peers` the addresses that they come from."""

    def __init__(self, response: bytes) -> None:
        self.heads: list[bytes] = []
        self.peers: list[str] = []
        self.is_reached = asyncio.Event()
        self.port = 0
        self._response = response

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a little, respond, and close."""
        self.peers.append(writer.get_extra_info("peername")[0])
        self.heads.append(await reader.read(65536))
        self.is_reached.set()
        writer.write(self._response)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def attack_server(response: bytes = REJECTED) -> AsyncIterator[AttackServer]:
    """Run one for the time of a block."""
    found = AttackServer(response)
    async with await asyncio.start_server(found.answer, "127.0.0.1", 0) as server:
        found.port = server.sockets[0].getsockname()[1]
        yield found
