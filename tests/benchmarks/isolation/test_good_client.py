"""The good client: it reads on, and what it still waits for counts."""

import asyncio

import pytest

from benchmarks.isolation.good_client import GoodClient
from benchmarks.server_process import local_target
from tests.benchmarks.isolation.attack_server import attack_server
from tests.server.processes import HANG_S


def stream(text: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()


async def test_the_good_client_reads_on_until_a_stream_fails():
    async with attack_server(stream("data: 1\n\ndata: [DONE]\n\n"), stream("data: 2\n\n")) as server:
        good = GoodClient(local_target(server.port))
        with pytest.raises(RuntimeError, match=r"the stream has failed: 200 .*data: 2"):
            await good.read_stream()
        assert len(good.figures().gaps) == 2  # between the two pieces, and since the last one


async def test_an_unanswered_livez_counts_as_long_as_it_waits():
    async with attack_server(b"HTTP/1.1 200 OK\r\n") as server:
        good = GoodClient(local_target(server.port))
        asking = asyncio.create_task(good.ask_livez())
        await server.is_reached.wait()
        one, two = good.figures().livez, good.figures().livez
        assert len(one) == len(two) == 1
        assert 0 < one[0] < two[0]
        with pytest.raises(EOFError):
            await asking


async def test_the_connection_for_livez_stays_open():
    async with attack_server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", keeps_open=True) as server:
        good = GoodClient(local_target(server.port))
        asking = asyncio.create_task(good.ask_livez())
        async with asyncio.timeout(HANG_S):
            while len(server.heads) < 3:
                server.is_reached.clear()
                await server.is_reached.wait()
        asking.cancel()
        await asyncio.wait([asking])
    assert len(server.peers) == 1
    assert all(b"GET /livez" in head and b"close" not in head for head in server.heads)


async def test_without_a_stream_there_are_no_times_between_tokens():
    async with attack_server() as server:
        good = GoodClient(local_target(server.port), has_stream=False)
        tasks = good.start()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(tasks) == 2
        assert good.figures().gaps == []
