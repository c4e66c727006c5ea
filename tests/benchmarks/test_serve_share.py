"""The clients of the benchmark read a stream to its end, and notice one that is cut or too short."""

import asyncio
import json

import pytest

from benchmarks.serve_share import stream


async def serve_once(chunks: list[bytes]):
    """A server that answers one request with `chunks`; returns its port and the request's body, once there."""
    body: asyncio.Future[dict] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.partition("content-length: ")[2].split()[0])
        body.set_result(json.loads(await reader.readexactly(length)))
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1], body


async def test_a_stream_is_read_to_its_end():
    server, port, body = await serve_once([b'data: {"usage":{"completion_tokens":7}}\n\ndata: [DO', b"NE]\n\n"])
    async with server:
        await stream(port, [1, 2, 3], 7)
    asked = await body
    assert (asked["prompt"], asked["max_tokens"], asked["stream"]) == ([1, 2, 3], 7, True)


@pytest.mark.parametrize(
    ("chunks", "says"),
    [([b"data: {}\n\n"], "cut"), ([b'data: {"completion_tokens":6}\n\ndata: [DONE]\n\n'], "ended early")],
)
async def test_a_stream_that_is_cut_or_too_short_fails(chunks, says):
    server, port, _ = await serve_once(chunks)
    async with server:
        with pytest.raises(AssertionError, match=says):
            await stream(port, [1], 7)
