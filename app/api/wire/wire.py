"""The seam between an answer and the bytes of one API: all that a response knows of the API that it speaks.

OpenAI's is `openai_wire`. Another API is a folder of its own beside this room, with its fields, their conversion, its
wire and its routes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from app.contract.errors import ErrorInfo
from app.contract.events import ChoiceEnd, Finished, PromptScored, Timings, TokenDelta, Usage


class JsonBody(NamedTuple):
    """One JSON body, in pieces that take a millisecond each.

    `num_bytes` is the memory of what they are made of. It is None for a body that is short, as one of text alone: that
    is sent at once, with its length.
    """

    pieces: Iterator[bytes]
    num_bytes: int | None


Ending = bytes | Iterator[bytes]
"""The last bytes of a stream; of a long end in pieces that take a millisecond each."""


def joined(ending: Ending) -> bytes:
    """Return the last bytes of a stream at once: for wires whose end is short."""
    return ending if isinstance(ending, bytes) else b"".join(ending)


class StreamWire(Protocol):
    """Writes one response as a stream. One owner, on the loop.

    The bytes are complete events or lines; b"" says nothing.
    """

    @property
    def media_type(self) -> str:
        """The media type of a stream."""

    @property
    def heartbeat(self) -> bytes:
        """The bytes of a stream that has nothing to send for a while."""

    def first(self, scored: PromptScored | None = None) -> Iterator[bytes]:
        """Yield what a stream begins with, in pieces that take a millisecond each.

        Called with the first event of the engine, or with each prompt whose tokens are scored.
        """

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the bytes of new tokens in a stream."""

    def finish(self, finished: Finished) -> bytes:
        """Return the bytes of the end of a choice in a stream."""

    def last(self, usage: Usage, span: Timings) -> Ending:
        """Return the last bytes of a stream whose choices have all ended."""

    def error(self, error: ErrorInfo) -> Ending:
        """Return the last bytes of a stream that has failed."""


class Wire(StreamWire, Protocol):
    """Writes one response, either as a stream or as one JSON body. One owner, on the loop."""

    def skip(self, delta: TokenDelta) -> None:
        """Take new tokens that the reader of a stream has already; the bytes of later ones may depend on them."""

    def keep(self, event: TokenDelta | PromptScored) -> None:
        """Take what a JSON body is made of."""

    def whole(self, ends: Mapping[int, ChoiceEnd], usage: Usage, span: Timings) -> JsonBody:
        """Return the JSON body, of choices that have all ended and whose events were kept."""
