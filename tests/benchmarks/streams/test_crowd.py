"""Crowds over real sockets: every token is checked, and each way of reading is what it says."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.server.sockets import listen
from benchmarks.streams import crowd as crowds
from benchmarks.streams import readers
from benchmarks.streams.bare import BareServer, BareStream
from benchmarks.streams.control import Refused
from benchmarks.streams.crowd import PROMPT, SLOW, SSE, STALL, VANISH, Crowd, Habit
from tests.api.serving import until

HANG_S = 60.0


@asynccontextmanager
async def served(server: BareServer) -> AsyncIterator[int]:
    """Let a bare server listen; yield its port."""
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


def crowd(port: int, mode: str = PROMPT, body: dict | None = None) -> Crowd:
    """A crowd of SSE clients."""
    return Crowd(Habit(SSE, mode, 1, 1, True, body or {}), port, itertools.count(1))


async def finish(server: BareServer, *crowds: Crowd) -> None:
    """End all streams and wait for it."""
    server.pace(0)
    server.finish()
    for each in crowds:
        each.flow()
        await each.finish(HANG_S)


async def test_every_token_comes_to_prompt_readers(server):
    clients = crowd(server.port)
    await clients.open(5)
    await until(lambda: server.num_open == 5)
    clients.book.begin()
    server.pace(200)
    await until(lambda: all(tally.number >= 10 for tally in clients.tallies))
    await finish(server, clients)
    made = server.tokens()
    assert {tally.stream: tally.number for tally in clients.tallies} == made
    assert clients.book.record.num_tokens == clients.book.record.num_events == sum(made.values())
    assert all(tally.lost == tally.doubled == tally.wrong == 0 for tally in clients.tallies)


async def test_a_planted_gap_is_a_lost_token(server):
    clients = crowd(server.port)
    await clients.open(2)
    await until(lambda: server.num_open == 2)
    server.pace(200)
    await until(lambda: all(tally.number >= 2 for tally in clients.tallies))
    next(iter(server.streams)).num_tokens += 3
    await until(lambda: all(tally.number >= 6 for tally in clients.tallies))
    await finish(server, clients)
    assert sorted(tally.lost for tally in clients.tallies) == [0, 3]


async def test_one_that_stalls_reads_nothing_until_it_flows(server, monkeypatch):
    monkeypatch.setattr(crowds, "QUIET_S", 0.05)
    clients = crowd(server.port, STALL)
    await clients.open(1)
    await until(lambda: server.num_open == 1)
    server.pace(500)
    await until(lambda: sum(server.tokens().values()) >= 20)
    assert [tally.number for tally in clients.tallies] == [0]
    server.pace(0)
    made = server.tokens()
    assert await clients.drain() == made
    await finish(server, clients)


async def test_a_slow_one_reads_a_few_bytes_at_a_time(server, monkeypatch):
    monkeypatch.setattr(readers, "SLOW_INTERVAL_S", 0.02)
    sizes = []
    feed = readers.HttpClient.feed
    monkeypatch.setattr(
        readers.HttpClient, "feed", lambda self, data, now: sizes.append(len(data)) or feed(self, data, now)
    )
    clients = crowd(server.port, SLOW)
    await clients.open(1)
    await until(lambda: server.num_open == 1)
    server.pace(200)
    await until(lambda: len(sizes) >= 10)
    assert max(sizes) <= readers.SLOW_BYTES
    await finish(server, clients)
    assert {tally.stream: tally.number for tally in clients.tallies} == server.tokens()


async def test_those_that_vanish_come_back_as_others(server, monkeypatch):
    monkeypatch.setattr(crowds, "STAYS_S", (0.01, 0.03))
    clients = crowd(server.port, VANISH)
    await clients.open(3)
    server.pace(100)
    await until(lambda: clients.num_returns >= 12)
    clients.flow()
    await until(lambda: server.num_open == 0)
    clients.check()
    assert len(server.tokens()) >= 12


async def test_those_that_cannot_come_back_are_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    clients = crowd(port, VANISH)
    await clients.open(1)
    with pytest.raises(Refused, match="cannot connect"):
        await asyncio.wait_for(clients_fail(clients), HANG_S)


async def clients_fail(clients: Crowd) -> None:
    """Look again and again, until something is wrong."""
    while True:
        clients.check()
        await asyncio.sleep(0.002)


async def test_a_cut_stream_is_an_error(server):
    clients = crowd(server.port)
    await clients.open(2)
    await until(lambda: server.num_open == 2)
    next(iter(server.streams)).connection().abort()
    await until(lambda: server.num_open == 1)
    with pytest.raises(Refused, match="1 of sse, prompt: a connection ended after 0 tokens"):
        await clients.finish(HANG_S)
    server.finish()
    await until(lambda: sum(tally.is_done for tally in clients.tallies) == 1)


async def test_streams_that_do_not_end_are_told_and_not_waited_for(server):
    clients = crowd(server.port)
    await clients.open(2)
    await until(lambda: server.num_open == 2)
    with pytest.raises(Refused, match=r"2 streams of sse have not ended within 0.05 s"):
        await clients.finish(0.05)
    await finish(server, clients)


async def test_an_answer_that_is_no_stream_is_an_error():
    class Wrong(BareStream):
        def data_received(self, data: bytes) -> None:
            self.connection().write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")

    server = await asyncio.get_running_loop().create_server(lambda: Wrong(BareServer()), "127.0.0.1", 0)
    clients = crowd(server.sockets[0].getsockname()[1])
    await clients.open(1)
    with pytest.raises(Refused, match="404 Not Found"):
        await clients.finish(HANG_S)
    server.close()
    await server.wait_closed()
