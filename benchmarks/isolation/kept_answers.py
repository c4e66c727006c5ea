"""Attacks by answers that clients can come back to: many are kept, many are read again, none is read."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack

from benchmarks.isolation.answers import SCORED, STORY
from benchmarks.isolation.attack import CHAT, chat
from benchmarks.isolation.attack_client import Client

NUM_READERS = 8  # of a stream at a time
NUM_RESUMES = 500  # of one answer
NUM_GUESSES = 100
READ_S = 5.0
POLL_S = 0.05
NUM_TOKENS = 24  # of each choice over a WebSocket, where all of them are sent
FRAMES_S = 0.02  # between two frames and the next two: a socket may send 100 a second


async def kept_streams(client: Client) -> None:
    """Begin an answer, and hang up: it goes on, and is kept."""
    if await _begin(client, chat(stream=True, max_tokens=32)):
        client.note("left")


async def read_streams(client: Client) -> None:
    """Ask for a long answer that is kept, and read it to its end."""
    await client.post(CHAT, chat(stream=True, max_tokens=200), headers="x-quire-resume: 1\r\n")


async def unread_streams(client: Client) -> None:
    """Come back to one answer with as many connections as it may have, and read nothing of it."""
    options = {"slow_reader": "coalesce"}
    stream = await _begin(client, chat(stream=True, stream_options=options, **{**SCORED, "max_tokens": 400}))
    async with AsyncExitStack() as opened:
        for _ in range(NUM_READERS if stream else 0):
            _, writer = await opened.enter_async_context(client.connected(receive_buffer=4096))
            writer.write(f"{client.head('GET', stream)}\r\n".encode())
            client.note("came back")
        await asyncio.sleep(READ_S)


async def resumes(client: Client) -> None:
    """Come back behind the last token of a large answer, again and again: little is sent, all of it was told."""
    stream, last = await _begin(client, chat(stream=True, **{**SCORED, "n": 8, "max_tokens": 100})), ""
    while stream and (head := await client.peek("HEAD", stream)).get("x-quire-state") == "running":
        last = head["x-quire-position"]
        await asyncio.sleep(POLL_S)
    for _ in range(NUM_RESUMES if stream else 0):
        await client.peek("GET", f"{stream}?after={last}")


async def socket_resumes(client: Client) -> None:
    """Come back behind the last token of an answer over a WebSocket, and detach, as often as the protocol allows."""
    opened = await client.socket()
    request = {"messages": STORY, "ignore_eos": True, **SCORED, "n": 8, "max_tokens": NUM_TOKENS}
    start = {"t": "start", "id": "a", "request": request, "ttl_s": 60, "credit": NUM_TOKENS}
    await opened.send(json.dumps(start))
    stream = (await client.hear(opened, "accepted", "error")).get("stream")
    if stream:
        await client.hear(opened, "done", "error")
    hearing = asyncio.create_task(client.hear(opened))
    try:
        for number in range(NUM_RESUMES if stream else 0):
            resume = {"t": "resume", "id": str(number), "stream": stream, "after": [NUM_TOKENS] * 8}
            await opened.send(json.dumps(resume))
            await opened.send(json.dumps({"t": "detach", "id": str(number)}))
            await asyncio.sleep(FRAMES_S)
    finally:
        hearing.cancel()
    await opened.close()


async def endless_keys(client: Client) -> None:
    """Ask for one token under a key that nobody has sent, and hang up when the answer begins."""
    key = f"idempotency-key: {random.randbytes(120).hex()}\r\n"
    await client.peek("POST", CHAT, chat(max_tokens=1), key)


async def guessed_ids(client: Client) -> None:
    """Look at what has another id, and cancel it."""
    for method in ("HEAD", "DELETE"):
        paths = [f"/v1/streams/chatcmpl-{random.randbytes(16).hex()}" for _ in range(NUM_GUESSES)]
        await client.send_all(method, paths)


async def _begin(client: Client, payload: bytes) -> str:
    """Ask for an answer, and hang up when it has begun; return the path of its stream, "" if it is not kept."""
    head = await client.peek("POST", CHAT, payload, "x-quire-resume: 1\r\n")
    stream_id = head.get("x-quire-stream-id")
    return f"/v1/streams/{stream_id}" if stream_id else ""
