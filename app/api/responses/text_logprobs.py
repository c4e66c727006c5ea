"""The log-probabilities of a response's messages: those of the tokens that are text, and of no others.

The parsers do not say of which tokens a piece of text was made. So the tokens of a delta go with the first text that
the delta completes; where it completes nothing, they wait for the next text. Tokens of reasoning and of calls are left
out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.api.wire.json_line import dump_line, later, written
from app.contract.packed_logprobs import Logprobs
from app.streaming.openai_shapes import TokenBytes, logprobs_entries


class TextLogprobs:
    """Gives tokens to the texts of one response. One owner.

    With `in_deltas` the deltas of a stream have them. With `at_end` each text keeps them for the end of the response,
    which is written in pieces: the last event of a stream, or the JSON body. The events between have none.

    Attributes:
        num_bytes: the memory of what the texts keep.
    """

    def __init__(self, token_bytes: TokenBytes, *, in_deltas: bool, at_end: bool) -> None:
        self.num_bytes = 0
        self._token_bytes = token_bytes
        self._in_deltas = in_deltas
        self._at_end = at_end
        self._num_top = 0
        self._waiting = bytearray()  # packed rows

    @property
    def has_waiting(self) -> bool:
        """Whether there are tokens that go with the next text."""
        return bool(self._waiting)

    def wait(self, logprobs: Logprobs) -> None:
        """Take the tokens of the next delta."""
        self._num_top = logprobs.num_top
        self._waiting += logprobs.rows

    def drop(self) -> None:
        """Drop the tokens that wait: they are no text."""
        self._waiting.clear()

    def give(self, kept: bytearray) -> list[Any]:
        """Return the tokens that wait for the delta of a text, and add them to those that the text keeps."""
        rows = bytes(self._waiting)
        self._waiting.clear()
        if self._at_end:
            kept += rows
            self.num_bytes += len(rows)
        if not self._in_deltas or not rows:
            return []
        entries: list[Any] = written(logprobs_entries(Logprobs(self._num_top, rows), self._token_bytes))
        return entries

    def whole(self, kept: bytearray) -> list[Any]:
        """Return the tokens that a text has kept; their JSON is written in pieces."""
        return later(self._pieces(bytes(kept))) if kept else []

    def _pieces(self, rows: bytes) -> Iterator[bytes]:
        yield b"["
        for number, piece in enumerate(Logprobs(self._num_top, rows).pieces()):
            yield (b"," if number else b"") + dump_line(logprobs_entries(piece, self._token_bytes))[1:-1]
        yield b"]"
