"""Reads an answer without looking into it: for clients that must cost little beside the server that they measure."""

from __future__ import annotations

import re

import httptools

TAIL_BYTES = 2048


class PieceReader:
    """Takes the bytes of one answer (see `load_client.Reader`).

    Attributes:
        is_over: nothing more is to be read: all of it came, or it is no HTTP.
        status: of the answer; 0 before its head.
        times: when pieces of its body came.
        num_bytes, tail: how long the body is so far, and its end.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.status = 0
        self.times: list[float] = []
        self.num_bytes = 0
        self.tail = b""
        self._is_whole = False
        self._http = httptools.HttpResponseParser(self)

    def connected(self, now: float) -> None:
        """The time of the connection is not used."""

    def feed(self, piece: bytes, now: float) -> None:
        before = self.num_bytes
        try:
            self._http.feed_data(piece)
        except httptools.HttpParserError:
            self.is_over = True
        if self.num_bytes > before:
            self.times.append(now)

    def num_tokens(self) -> int:
        """Return the number of tokens in the response's usage.

        Raises:
            RuntimeError: the response is rejected, truncated or an error.
        """
        counts: list[bytes] = re.findall(rb'"completion_tokens": ?(\d+)', self.tail)
        if self.status != 200 or not self._is_whole or not counts:
            raise RuntimeError(f"the answer (status {self.status}) was rejected or truncated: {self.tail[-500:]!r}")
        return int(counts[-1])

    def on_headers_complete(self) -> None:
        """Note the status; called by the parser."""
        self.status = self._http.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Count the next bytes; called by the parser."""
        self.num_bytes += len(body)
        self.tail = (self.tail + body)[-TAIL_BYTES:]

    def on_message_complete(self) -> None:
        """Note the end; called by the parser."""
        self.is_over = self._is_whole = True
