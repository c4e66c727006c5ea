"""Texts of scripted tokens: each contains the stream, the number of the token, and the time of its generation.

    " 002a" "0001f" "8c3f20d1"      stream 42, token 31, microseconds of the monotonic clock (their last 32 bits)

The monotonic clock is the same in all processes of a machine, so a client knows how old a token is. A request's `seed`
contains the stream, and its speed as a multiple of the others'.
"""

from __future__ import annotations

from typing import NamedTuple

TOKEN_CHARS = 18
MAX_STREAMS = 1 << 16
_PREFIX_CHARS, _NUMBER_END = 5, 10
_STAMP_BITS = 0xFFFFFFFF


class Token(NamedTuple):
    """One token as a client reads it; `stamp` is in microseconds, see `stamp_of`."""

    prefix: str
    number: int
    stamp: int


def seed_of(stream: int, speed: int = 1) -> int:
    """Return the seed of a stream (below MAX_STREAMS)."""
    return speed * MAX_STREAMS + stream


def read_seed(seed: int) -> tuple[int, int]:
    """Return stream and speed of a seed."""
    return seed % MAX_STREAMS, max(1, seed // MAX_STREAMS)


def prefix_of(stream: int) -> str:
    """Return the prefix of every token of a stream."""
    return f" {stream:04x}"


def stamp_of(seconds: float) -> int:
    """Return a time of the monotonic clock as tokens carry it."""
    return int(seconds * 1e6) & _STAMP_BITS


def age_s(stamp: int, now: int) -> float:
    """Return the seconds between two stamps, less than 71 minutes apart."""
    return ((now - stamp) & _STAMP_BITS) / 1e6


def read_token(text: str) -> Token | None:
    """Parse a text of TOKEN_CHARS; None if it is not a token."""
    try:
        return Token(text[:_PREFIX_CHARS], int(text[_PREFIX_CHARS:_NUMBER_END], 16), int(text[_NUMBER_END:], 16))
    except ValueError:
        return None
