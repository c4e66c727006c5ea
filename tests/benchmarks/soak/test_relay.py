"""The relay between a client and its server: it passes on what both say, also after it was stopped."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from benchmarks.server_process import local_target
from benchmarks.soak.relay import relaying


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line.upper())
    writer.close()


async def test_both_sides_hear_each_other_also_after_a_stop():
    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server, relaying(local_target(server.sockets[0].getsockname()[1])) as relay:
        reader, writer = await asyncio.open_connection(**relay.target.connecting)
        writer.write(b"a\n")
        assert await reader.readline() == b"A\n"
        stopping = asyncio.create_task(relay.stop_for(0.1))
        writer.write(b"b\n")
        await stopping
        assert await reader.readline() == b"B\n"
        writer.write_eof()
        assert await reader.read() == b"", "the server's end is the client's"
        writer.close()


async def test_a_server_that_is_not_there_ends_the_connection():
    server = await asyncio.start_server(answer, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    async with relaying(local_target(port)) as relay:
        reader, writer = await asyncio.open_connection(**relay.target.connecting)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.transport.abort()
