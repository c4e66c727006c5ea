"""JSON that is one line for every client, and long JSON in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import orjson

_HOLE = b"\0"  # JSON has none: in texts it is written as \u0000
_encode = msgspec.json.Encoder().encode


def one_line(json: bytes) -> bytes:
    """Return JSON that is one line for every client.

    Some clients split streams like Python's `str.splitlines`, which also splits at three characters that JSON keeps.
    """
    if json.isascii():
        return json
    return (
        json.replace(b"\xc2\x85", rb"\u0085").replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    )


def dump_line(value: object) -> bytes:
    """Return `value`, of what JSON has, as JSON that is one line for every client."""
    return one_line(orjson.dumps(value))


def text_line(value: str | msgspec.Struct) -> bytes:
    """Return a text or a struct as JSON that is one line for every client. Of these, msgspec is the fastest writer."""
    line = _encode(value)
    return line if line.isascii() else one_line(line)


def written(value: object) -> Any:
    """Return a value of a struct's field, of any type, of which `dump_line` makes the JSON."""
    return msgspec.Raw(dump_line(value))


def later(pieces: Iterator[bytes]) -> Any:
    """Return a value of a struct's field, of any type, whose JSON comes in pieces: `dump_pieces` writes it."""
    return pieces


def dump_pieces(value: object) -> Iterator[bytes]:
    """Yield a struct as JSON; what `later` returned for its fields is written piece by piece, when it is asked for."""
    values: list[Iterator[bytes]] = []

    def leave_hole(pieces: Any) -> msgspec.Raw:
        values.append(pieces)
        return msgspec.Raw(_HOLE)

    first, *others = msgspec.json.encode(value, enc_hook=leave_hole).split(_HOLE)
    yield first
    for pieces, after in zip(values, others, strict=True):
        yield from pieces
        yield after


async def next_piece(pieces: Iterator[bytes], lock: asyncio.Lock) -> bytes | None:
    """Return the next piece, or None behind the last one; with `lock`, one is made per iteration of the loop.

    Loop only. Cancel-safe, but a piece can be lost.
    """
    async with lock:
        piece = next(pieces, None)
        await asyncio.sleep(0)
    return piece
