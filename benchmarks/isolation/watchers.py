"""Attacks by those who watch the engine: many, who read nothing, who come and go, who ask for figures all the time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from websockets.asyncio.client import ClientConnection

from app.client.live_picture import LivePicture
from benchmarks.isolation.attack_client import Client

WATCHED_S = 5.0
UNREAD_S = 20.0  # until the kernel takes no more pictures, also of a server that makes three a second
QUIET_S = 3.0  # without a picture; an engine that works makes ten a second
RECEIVE_BUFFER = 4096  # of one that reads nothing: the kernel would take all pictures of UNREAD_S for it
MISSED = "missed"
MISSED_NOTHING = "missed nothing"
"""The answer to an attack that reads nothing, and has got every picture all the same: nobody has stalled."""


async def watchers(client: Client) -> None:
    """Watch, and read all that comes."""
    async with await client.watch() as opened:
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCHED_S):
                async for _ in opened:
                    client.note("message")


async def unread_watchers(client: Client) -> None:
    """Watch, read nothing but the first message, and count in the end the pictures that were missed meanwhile."""
    opened = await client.watch(RECEIVE_BUFFER)
    try:
        picture = LivePicture()
        picture.receive(await _next(opened, WATCHED_S))
        opened.transport.pause_reading()
        await asyncio.sleep(UNREAD_S)
        opened.transport.resume_reading()
        num_missed = await _num_missed(opened, picture)
        client.note(MISSED if num_missed else MISSED_NOTHING, num_missed or 1)
    finally:
        opened.transport.abort()


async def _num_missed(opened: ClientConnection, picture: LivePicture) -> int:
    """Read on up to a message that does not follow the one before; return how many are missing, 0 if none is."""
    with suppress(TimeoutError):
        while True:
            before = picture.number
            picture.receive(await _next(opened, QUIET_S))
            if num_missed := picture.number - before - 1:
                return num_missed
    return 0


async def _next(opened: ClientConnection, within_s: float) -> bytes:
    # Python 3.11's `wait_for` would go on when it is cancelled at the moment that a picture comes.
    async with asyncio.timeout(within_s):
        message = await opened.recv()
    assert isinstance(message, bytes)
    return message


async def fleeting_watchers(client: Client) -> None:
    """Watch, and leave at once."""
    opened = await client.watch()
    client.note("opened")
    opened.transport.abort()


async def figures(client: Client) -> None:
    """Read the figures of the engine as often as they come."""
    async with client.connected() as (reader, writer):
        writer.write(f"{client.head('GET', '/v1/engine/events?interval=0.2')}\r\n".encode())
        client.note((await reader.readline()).split()[1].decode())
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCHED_S):
                while await reader.read(65536):
                    pass
