"""The process of those who watch: they read and decode the messages of `/live`, or read nothing, and draw nothing."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from contextlib import suppress
from typing import Any

import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from app.client.live_picture import LivePicture
from app.contract.live_state import LIVE_PROTOCOL
from app.streaming.chat_table import CLOSE_RATE
from benchmarks.streams.control import serve_requests, take_output

RECEIVE_BUFFER = 4096  # of one that reads nothing: what the kernel takes for it would look like reading
OPEN_S, DRAIN_S, RETRY_S = 30.0, 10.0, 0.1


class Watcher:
    """One that watches over a socket of its own.

    Attributes:
        num_messages, num_bytes: what it has received since it began.
        num_pictures: how many pictures there were, by their numbers: more than messages if it has missed some.
    """

    def __init__(self, opened: ClientConnection, *, is_reading: bool) -> None:
        self.num_messages = self.num_bytes = self.num_pictures = 0
        self._opened = opened
        self._is_reading = is_reading
        self._picture = LivePicture()
        self._reading: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Take the first message, which does not count; then read, or stop to."""
        await self._take()
        self.num_messages = self.num_bytes = self.num_pictures = 0
        if self._is_reading:
            self._reading = asyncio.create_task(self._read())
        else:
            self._opened.transport.pause_reading()

    async def end(self) -> None:
        """Leave; who has read nothing reads now, until it knows that it has missed something, or nothing comes.

        Raises:
            Exception: a message could not be decoded, or the server has closed the connection.
        """
        if self._reading is None:
            self._opened.transport.resume_reading()
            with suppress(TimeoutError):
                while self.num_messages == self.num_pictures:
                    await asyncio.wait_for(self._take(), DRAIN_S)
        elif self._reading.done():
            await self._reading
        else:
            self._reading.cancel()
        self._opened.transport.abort()

    async def _read(self) -> None:
        while True:
            await self._take()

    async def _take(self) -> None:
        message = await self._opened.recv()
        assert isinstance(message, bytes)
        before = self._picture.number
        self._picture.receive(message)
        self.num_messages += 1
        self.num_bytes += len(message)
        self.num_pictures += self._picture.number - before


class Watchers:
    """The requests of the benchmark: some begin to watch, and all leave.

    Attributes:
        present: those who watch.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.present: list[Watcher] = []
        self._began = self._began_s = 0.0  # by the clock, and of this process's time

    async def watch(self, num_watchers: int, is_reading: bool) -> dict[str, Any]:
        """Begin to watch; the answer comes when each has its first message."""
        async with asyncio.timeout(OPEN_S):
            for _ in range(num_watchers):
                self.present.append(await self._begin(is_reading))
        self._began, self._began_s = time.perf_counter(), time.process_time()
        return {}

    async def leave(self) -> dict[str, Any]:
        """Leave; return what all have received since they began, in what time, and how many pictures there were."""
        seconds, reading_s = time.perf_counter() - self._began, time.process_time() - self._began_s
        watchers, self.present = self.present, []
        for watcher in watchers:
            await watcher.end()
        return {
            "num_messages": sum(watcher.num_messages for watcher in watchers),
            "num_bytes": sum(watcher.num_bytes for watcher in watchers),
            "reading_s": reading_s,
            "seconds": seconds,
            "num_pictures": max((watcher.num_pictures for watcher in watchers), default=0),
        }

    async def _begin(self, is_reading: bool) -> Watcher:
        """Return one who watches, once there is a place: the server may not know yet that those before have left."""
        while True:
            watcher = Watcher(await self._open(is_reading), is_reading=is_reading)
            try:
                await watcher.begin()
            except ConnectionClosedError as error:
                if error.rcvd is None or error.rcvd.code != CLOSE_RATE:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                return watcher

    async def _open(self, is_reading: bool) -> ClientConnection:
        peer = socket.socket()
        if not is_reading:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", self._port))
        return await connect(
            f"ws://127.0.0.1:{self._port}/live", sock=peer, subprotocols=[LIVE_PROTOCOL],  # type: ignore[list-item]
            proxy=None, compression=None, max_size=None, ping_interval=None,
        )  # fmt: skip


async def serve(port: int, answers: int) -> None:
    """Serve the benchmark's requests until its pipe ends."""
    watchers = Watchers(port)
    await serve_requests({"watch": watchers.watch, "leave": watchers.leave}, answers)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), take_output()))
