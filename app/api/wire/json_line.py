"""JSON that is one line for every client, and long JSON in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import orjson


def dump_line(value: object) -> bytes:
    """Return `value` as JSON that is one line for every client.

    Some clients split streams like Python's `str.splitlines`, which also splits at three characters that JSON keeps.
    """
    line = orjson.dumps(value)
    if line.isascii():
        return line
    return (
        line.replace(b"\xc2\x85", rb"\u0085").replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    )


async def next_piece(pieces: Iterator[bytes], lock: asyncio.Lock) -> bytes | None:
    """Return the next piece, or None behind the last one; with `lock`, one is made per iteration of the loop.

    Loop only. Cancel-safe, but a piece can be lost.
    """
    async with lock:
        piece = next(pieces, None)
        await asyncio.sleep(0)
    return piece
