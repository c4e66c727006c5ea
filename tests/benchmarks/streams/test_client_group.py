"""Groups of clients over real sockets: every token is checked, and each mode reads as it should."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.server.sockets import listen
from benchmarks.streams import client_group as client_group_module
from benchmarks.streams import readers
from benchmarks.streams.bare import BareServer, BareStream
from benchmarks.streams.client_group import PROMPT, SLOW, SSE, STALL, VANISH, ClientGroup, ClientSettings
from benchmarks.streams.control import Rejected
from tests.api.serving import until

HANG_S = 60.0


@asynccontextmanager
async def served(server: BareServer) -> AsyncIterator[int]:
    """Run a bare server; yield its port."""
    listener = listen("127.0.0.1", 0)
    listening = await server.listen(listener)
    try:
        yield listener.getsockname()[1]
    finally:
        server.pace(0)
        listening.close()
        for stream in list(server.streams):
            stream.connection().abort()
        await until(lambda: not server.streams)


@pytest.fixture
async def server() -> AsyncIterator[BareServer]:
    server = BareServer()
    async with served(server) as port:
        server.port = port
        yield server


def group(port: int, mode: str = PROMPT, body: dict | None = None) -> ClientGroup:
    """A group of SSE clients."""
    return ClientGroup(ClientSettings(SSE, mode, 1, 1, True, body or {}), port, itertools.count(1))


async def finish(server: BareServer, *groups: ClientGroup) -> None:
    """End all streams, and wait for their ends."""
    server.pace(0)
    server.finish()
    for each in groups:
        each.read_promptly()
        await each.finish(HANG_S)


async def test_prompt_readers_receive_every_token(server):
    clients = group(server.port)
    await clients.open(5)
    await until(lambda: server.num_open == 5)
    clients.recorder.begin()
    server.pace(200)
    await until(lambda: all(check.number >= 10 for check in clients.checks))
    await finish(server, clients)
    generated = server.tokens()
    assert {check.stream: check.number for check in clients.checks} == generated
    assert clients.recorder.record.num_tokens == clients.recorder.record.num_events == sum(generated.values())
    assert all(check.lost == check.doubled == check.wrong == 0 for check in clients.checks)


async def test_a_gap_in_the_numbers_is_a_lost_token(server):
    clients = group(server.port)
    await clients.open(2)
    await until(lambda: server.num_open == 2)
    server.pace(200)
    await until(lambda: all(check.number >= 2 for check in clients.checks))
    next(iter(server.streams)).num_tokens += 3
    made = max(server.tokens().values())
    await until(lambda: all(check.number > made for check in clients.checks))
    await finish(server, clients)
    assert sorted(check.lost for check in clients.checks) == [0, 3]


async def test_a_stalled_client_reads_nothing_until_told_to_read_promptly(server):
    clients = group(server.port, STALL)
    await clients.open(1)
    await until(lambda: server.num_open == 1)
    server.pace(500)
    await until(lambda: sum(server.tokens().values()) >= 20)
    assert [check.number for check in clients.checks] == [0]
    server.pace(0)
    generated = server.tokens()
    assert await clients.drain() == generated
    await finish(server, clients)


async def test_a_slow_client_reads_a_few_bytes_at_a_time(server, monkeypatch):
    monkeypatch.setattr(readers, "SLOW_INTERVAL_S", 0.02)
    sizes = []
    feed = readers.HttpClient.feed
    monkeypatch.setattr(
        readers.HttpClient, "feed", lambda self, data, now: sizes.append(len(data)) or feed(self, data, now)
    )
    clients = group(server.port, SLOW)
    await clients.open(1)
    await until(lambda: server.num_open == 1)
    server.pace(200)
    await until(lambda: len(sizes) >= 10)
    assert max(sizes) <= readers.SLOW_BYTES
    await finish(server, clients)
    assert {check.stream: check.number for check in clients.checks} == server.tokens()


async def test_vanishing_clients_reconnect_with_new_streams(server, monkeypatch):
    monkeypatch.setattr(client_group_module, "STAYS_S", (0.01, 0.03))
    clients = group(server.port, VANISH)
    await clients.open(3)
    server.pace(100)
    await until(lambda: clients.num_returns >= 12)
    clients.read_promptly()
    await until(lambda: server.num_open == 0)
    clients.raise_errors()
    assert len(server.tokens()) >= 12


async def test_a_vanishing_client_that_ends_while_it_connects_is_no_error(server, monkeypatch):
    clients = group(server.port, VANISH)
    lost = asyncio.Event()

    class EndedReader(readers.Reader):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            clients.read_promptly()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            lost.set()

    monkeypatch.setattr(client_group_module, "Reader", EndedReader)
    await clients.open(1)
    await asyncio.wait_for(lost.wait(), HANG_S)
    clients.raise_errors()


async def test_vanishing_clients_that_cannot_connect_are_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    clients = group(port, VANISH)
    await clients.open(1)
    with pytest.raises(Rejected, match="cannot connect"):
        await asyncio.wait_for(raise_the_first_error(clients), HANG_S)


async def raise_the_first_error(clients: ClientGroup) -> None:
    """Wait for an error of the clients and raise it."""
    while True:
        clients.raise_errors()
        await asyncio.sleep(0.002)


async def test_an_aborted_stream_is_an_error(server):
    clients = group(server.port)
    await clients.open(2)
    await until(lambda: server.num_open == 2)
    next(iter(server.streams)).connection().abort()
    await until(lambda: server.num_open == 1)
    with pytest.raises(Rejected, match="1 of sse, prompt: a connection ended after 0 tokens"):
        await clients.finish(HANG_S)
    server.finish()
    await until(lambda: sum(check.is_done for check in clients.checks) == 1)


async def test_streams_that_do_not_end_in_time_are_an_error(server):
    clients = group(server.port)
    await clients.open(2)
    await until(lambda: server.num_open == 2)
    with pytest.raises(Rejected, match=r"2 streams of sse have not ended within 0.05 s"):
        await clients.finish(0.05)
    await finish(server, clients)


async def test_a_response_that_is_not_a_stream_is_an_error():
    class NotFoundStream(BareStream):
        def data_received(self, data: bytes) -> None:
            self.connection().write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")

    server = await asyncio.get_running_loop().create_server(lambda: NotFoundStream(BareServer()), "127.0.0.1", 0)
    clients = group(server.sockets[0].getsockname()[1])
    await clients.open(1)
    with pytest.raises(Rejected, match="404 Not Found"):
        await clients.finish(HANG_S)
    server.close()
    await server.wait_closed()
