"""What the answers of all routes have in common: the format's interface, and JSON on one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson

from app.contract.events import Finished, FinishReason, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs


@dataclass(frozen=True, slots=True)
class WholeChoice:
    """All of one choice, for clients that do not stream."""

    text: str
    logprobs: Logprobs | None
    reason: FinishReason


class WireFormat(Protocol):
    """Makes the bytes of one answer, in one route's shapes and one framing."""

    def opening(self) -> bytes:
        """Return what a stream begins with, for all its choices (possibly nothing)."""

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the chunk of new tokens; nothing if they released no text and no log-probabilities are due."""

    def finish(self, finished: Finished) -> bytes:
        """Return the chunk that ends a choice."""

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk that tells the token counts, if the client asked for it, else nothing."""

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> Iterator[bytes]:
        """Yield the body of an answer that is not streamed; the place of a choice is its index.

        It comes in pieces, some of them empty, none of which takes long to make: log-probabilities can be much.
        """


def dump_line(value: object) -> bytes:
    """Return `value` as JSON that every reader takes for one line.

    Some clients split streams where Python's `str.splitlines` does; JSON leaves three such characters as they are.
    """
    line = orjson.dumps(value)
    if line.isascii():
        return line
    return (
        line.replace(b"\xc2\x85", rb"\u0085").replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    )


def dump_items(values: Sequence[object]) -> bytes:
    """Return `values` as the inside of a JSON array."""
    return orjson.dumps(values)[1:-1]
