"""The good client: it reads on, and what it still waits for counts."""

import asyncio

import pytest

from benchmarks.isolation.good_client import GoodClient
from benchmarks.server_process import local_target
from tests.benchmarks.isolation.attack_server import attack_server


async def test_the_good_client_reads_on_until_a_stream_fails():
    answers = iter(["data: 1\n\ndata: [DONE]\n\n", "data: 2\n\n"])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = next(answers)
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        good = GoodClient(local_target(server.sockets[0].getsockname()[1]))
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
    response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    seen: list[bytes] = []
    is_enough = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(4096):
            seen.append(head)
            writer.write(response)
            if len(seen) == 3:
                is_enough.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        good = GoodClient(local_target(server.sockets[0].getsockname()[1]))
        asking = asyncio.create_task(good.ask_livez())
        await is_enough.wait()
        asking.cancel()
        await asyncio.wait([asking])
    assert all(b"GET /livez" in head and b"close" not in head for head in seen)
