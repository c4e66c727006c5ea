"""Attacks by connections, heads, frames and pieces of bodies: what comes before a request is one."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from functools import cache

from benchmarks.isolation.attack import CHAT, LARGEST, chat
from benchmarks.isolation.attack_client import Client

HELD_S = 5.0  # a connection without a complete request is dropped after 10 s
NUM_IDLE = 30  # connections of one worker
# 64 headers and 16,384 bytes are allowed.
ODD_HEADERS = "".join(
    [
        'authorization: Basic ,;="\t\xff\r\n',
        "x-api-key: " + "\xe9" * 3000 + "\r\n",
        "cookie: " + "; ".join(f"c{number}={number}" for number in range(300)) + "\r\n",
        "accept: " + ",".join(["*/*;q=0.001"] * 200) + "\r\n",
        "origin: http://" + "a." * 1000 + "\r\n",
        "traceparent: " + "0-" * 1000 + "\r\n",
        *(f"x-{number}:{' ' * 60}{number}{' ' * 60}\r\n" for number in range(20)),
    ]
)


async def bearer_blanks(client: Client) -> None:
    """Ask without a key, with a header of blanks."""
    await client.get("/v1/models", 100, f"authorization: Bearer a{' ' * 16_000}a\r\n")


async def odd_headers(client: Client) -> None:
    """Ask without a key, with headers that are as large as they may be."""
    await client.get("/v1/models", 100, ODD_HEADERS)


async def wrong_paths(client: Client) -> None:
    """Ask for what is not there."""
    await client.get("/v1/nothing", 100)


async def metrics(client: Client) -> None:
    """Read the metrics."""
    await client.get("/metrics", 100)


async def page(client: Client) -> None:
    """Read the largest file of the page."""
    await client.get("/static/conversation/conversation.js", 100)


async def churn(client: Client) -> None:
    """Open a connection, and drop it within a request."""
    async with client.connected() as (_, writer):
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n")
    client.note("opened")
    await asyncio.sleep(0.001)


async def idle_connections(client: Client) -> None:
    """Open connections, and say nothing."""
    async with AsyncExitStack() as opened:
        for _ in range(NUM_IDLE):
            await opened.enter_async_context(client.connected())
        client.note("opened")
        await asyncio.sleep(HELD_S)


async def unfinished_bodies(client: Client) -> None:
    """Send a body of the largest size but for its last byte."""
    head = f"{client.head('POST', CHAT)}content-length: {LARGEST}\r\n\r\n"
    async with client.connected() as (_, writer):
        writer.write(head.encode() + b" " * (LARGEST - 1))
        client.note("sent")
        await asyncio.sleep(HELD_S)


async def unfinished_frames(client: Client) -> None:
    """Send a frame of the largest size but for its last byte; the client is given a close where it is too much."""
    opened = await client.socket()
    head = b"\x81\xff" + LARGEST.to_bytes(8) + bytes(4)
    opened.transport.write(head + b" " * (LARGEST - 1))
    client.note("sent")
    async with asyncio.timeout(HELD_S):
        await client.hear(opened)


@cache
def _chunks() -> bytes:
    return b"".join(b"1\r\n%c\r\n" % byte for byte in chat("a" * 200_000, max_tokens=1)) + b"0\r\n\r\n"


async def small_chunks(client: Client) -> None:
    """Send a body in chunks of one byte."""
    head = f"{client.head('POST', CHAT)}transfer-encoding: chunked\r\n\r\n"
    async with client.connected() as (reader, writer):
        writer.write(head.encode() + _chunks())
        line = await reader.readline()
        client.note(line.split()[1].decode() if line else "cut")


async def pipelined(client: Client) -> None:
    """Send 1,000 requests at once, and read no response."""
    async with client.connected(receive_buffer=4096) as (_, writer):
        writer.write(f"{client.head('GET', '/v1/models')}\r\n".encode() * 1000)
        client.note("sent")
        await asyncio.sleep(HELD_S)


async def before_hello(client: Client) -> None:
    """Send a large frame as the first one of a socket."""
    opened = await client.socket(greet=False)
    await opened.send('{"t":"hello","protocol":"quire.v1","x":[' + "[]," * (LARGEST // 3 - 40) + "[]]}")
    await client.hear(opened, "welcome")
    await opened.close()


async def large_starts(client: Client) -> None:
    """Start answers to prompts that are too long."""
    opened = await client.socket()
    content = "every good word " * (LARGEST // 16 - 64)
    request = {"messages": [{"role": "user", "content": content}]}
    for number in range(20):
        await opened.send(json.dumps({"t": "start", "id": str(number), "request": request}))
        await client.hear(opened, "error")


async def frames(client: Client) -> None:
    """Send as many frames as the protocol allows."""
    opened = await client.socket()
    hearing = asyncio.create_task(client.hear(opened))
    try:
        while True:
            for _ in range(10):
                await opened.send(json.dumps({"t": "credit", "id": "nobody", "upto": [1]}))
            await opened.ping()
            client.note("pinged")
            await asyncio.sleep(0.1)
    finally:
        hearing.cancel()


@cache
def _large_frame() -> str:
    return '{"t":"credit","id":"nobody","upto":[1],"x":[' + "[]," * (LARGEST // 3 - 40) + "[]]}"


async def large_frames(client: Client) -> None:
    """Send frames of the largest size that nobody needs: with other sockets' they are complete at the same time."""
    opened = await client.socket()
    for _ in range(4):
        await opened.send(_large_frame())
        client.note("sent")
    await opened.close()


async def fragments(client: Client) -> None:
    """Send frames of a WebSocket in pieces of one byte."""
    opened = await client.socket()
    text = json.dumps({"t": "credit", "id": "nobody", "upto": [1], "x": "a" * 900})
    for _ in range(100):
        await opened.send([*text[:900], text[900:]])
        client.note("sent")
        await asyncio.sleep(0)  # sending seldom waits, and so the others would not send, nor the end be noticed
    await opened.close()


async def pongs(client: Client) -> None:
    """Send answers to pings that nobody sent, as fast as they are read."""
    opened = await client.socket()
    flood = b"\x8a\x80\0\0\0\0" * 10_000
    while True:
        opened.transport.write(flood)
        client.note("sent")
        await opened.drain()
        await asyncio.sleep(0)  # as above
