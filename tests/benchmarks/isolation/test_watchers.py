"""The watcher who reads nothing: it counts what it has missed, and says so if it has missed nothing."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve

from app.contract.live_state import LIVE_PROTOCOL
from benchmarks.isolation import watchers
from benchmarks.isolation.attack_client import Client
from tests.e2e.live_messages import MadeUpEngine
from tests.server.processes import HANG_S


@asynccontextmanager
async def watched(*numbers: int) -> AsyncIterator[Client]:
    """A server that sends whole messages with these numbers to whoever watches, and a client of it."""

    async def send(opened: ServerConnection) -> None:
        engine = MadeUpEngine(4)
        for number in numbers:
            engine.number = number - 1
            await opened.send(engine.whole())
        await opened.wait_closed()

    async with serve(send, "127.0.0.1", 0, subprotocols=[LIVE_PROTOCOL]) as server:  # type: ignore[list-item]
        yield Client(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", 4096)


async def missed(monkeypatch: pytest.MonkeyPatch, numbers: Sequence[int], quiet_s: float) -> dict[str, int]:
    monkeypatch.setattr(watchers, "UNREAD_S", 0.0)
    monkeypatch.setattr(watchers, "QUIET_S", quiet_s)
    async with watched(*numbers) as client:
        await watchers.unread_watchers(client)
    return dict(client.answers)


async def test_the_pictures_that_a_reader_has_missed_are_counted(monkeypatch: pytest.MonkeyPatch):
    assert await missed(monkeypatch, [7, 8, 9, 33, 50], HANG_S) == {"missed": 23}


async def test_a_reader_that_has_missed_nothing_says_so(monkeypatch: pytest.MonkeyPatch):
    assert await missed(monkeypatch, [7, 8, 9], 0.05) == {"missed nothing": 1}


async def test_the_kernel_takes_little_for_one_that_reads_nothing():
    sizes = []
    async with watched(1) as client:
        for receive_buffer in (watchers.RECEIVE_BUFFER, None):
            opened = await client.watch(receive_buffer)
            peer: socket.socket = opened.transport.get_extra_info("socket")
            sizes.append(peer.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
            opened.transport.abort()
    small, normal = sizes
    assert small <= 2 * watchers.RECEIVE_BUFFER < normal  # Linux takes twice of what is asked for
