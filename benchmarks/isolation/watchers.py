"""Attacks by those who watch the engine: many, who read nothing, who come and go, who ask for figures all the time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from benchmarks.isolation.attack_client import Client

WATCHED_S = 5.0


async def watchers(client: Client) -> None:
    """Watch, and read all that comes."""
    async with await client.watch() as opened:
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCHED_S):
                async for _ in opened:
                    client.note("message")


async def unread_watchers(client: Client) -> None:
    """Watch, and read nothing but the first message."""
    opened = await client.watch()
    try:
        await asyncio.wait_for(opened.recv(), WATCHED_S)
        client.note("message")
        opened.transport.pause_reading()
        await asyncio.sleep(WATCHED_S)
    finally:
        opened.transport.abort()


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
