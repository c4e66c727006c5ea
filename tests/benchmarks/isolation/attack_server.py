"""A server for tests of clients: it answers without looking at what is asked, and notes who asked for what."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import repeat

REJECTED = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


class AttackServer:
    """Listens on 127.0.0.1; `heads` are the beginnings of the requests, `peers` the addresses that they come from.

    The next of `responses` is for the next request; it ends the connection unless `keeps_open`.
    """

    def __init__(self, responses: Iterator[bytes], keeps_open: bool) -> None:
        self.heads: list[bytes] = []
        self.peers: list[str] = []
        self.is_connected, self.is_reached = asyncio.Event(), asyncio.Event()
        self.port = 0
        self._responses, self._keeps_open = responses, keeps_open
        self._open: set[asyncio.Task[None] | None] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a little, and respond."""
        self._open.add(asyncio.current_task())
        self.peers.append(writer.get_extra_info("peername")[0])
        self.is_connected.set()
        with suppress(ConnectionError):
            while head := await reader.read(65536):
                self.heads.append(head)
                self.is_reached.set()
                writer.write(next(self._responses))
                await writer.drain()
                if not self._keeps_open:
                    break
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self._open.discard(asyncio.current_task())

    async def until_closed(self) -> None:
        """Wait until all clients have gone."""
        while self._open:
            await asyncio.wait([task for task in self._open if task is not None])


@asynccontextmanager
async def attack_server(*responses: bytes, keeps_open: bool = False) -> AsyncIterator[AttackServer]:
    """Run one for the time of a block; one response is that to all requests."""
    found = AttackServer(repeat(responses[0]) if len(responses) == 1 else iter(responses), keeps_open)
    async with await asyncio.start_server(found.answer, "127.0.0.1", 0) as server:
        found.port = server.sockets[0].getsockname()[1]
        yield found
        server.close()
        for _ in range(10):  # a connection that has just been accepted gets its task some turns of the loop later
            await asyncio.sleep(0)
        await found.until_closed()
