"""A client of one HTTP stream, sans I/O: server-sent events or NDJSON, in HTTP/1.1 chunks.

It is not the load client: thousands of these clients share the machine with the server that they measure, so each one
does little, and it checks every token.
"""

from __future__ import annotations

from typing import Any

import orjson

from benchmarks.streams.control import Rejected
from benchmarks.streams.stream_apis import CHAT, StreamApi
from benchmarks.streams.stream_check import StreamCheck

HEAD_END, LINE_END = b"\r\n\r\n", b"\r\n"
DATA, DONE = b"data: ", b"[DONE]"
RESUME, RESUMABLE = "x-quire-resume: 1\r\n", b"\r\nx-quire-stream-id: "


class HttpClient:
    """One request on one connection; the bytes to send are `opening`.

    Attributes:
        checks: the one stream.
        is_over: whether the answer has ended, or the connection has.
    """

    def __init__(
        self,
        check: StreamCheck,
        body: dict[str, Any],
        port: int,
        *,
        is_ndjson: bool,
        is_resumable: bool = False,
        api: StreamApi = CHAT,
    ) -> None:
        self.checks = [check]
        self.is_over = False
        self._check = check
        self._api = api
        self._separator = b"\n" if is_ndjson else b"\n\n"
        self._ends_with_event = is_ndjson or not api.has_done
        self._is_resumable = is_resumable
        self._has_head = False
        self._has_finished = False
        self._rest = self._body = b""
        payload = orjson.dumps(api.fields(body) | {"stream": True})
        accept = "application/x-ndjson" if is_ndjson else "text/event-stream"
        head = (
            f"POST {api.path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: {accept}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n{RESUME if is_resumable else ''}\r\n"
        )
        self.opening = head.encode() + payload

    @property
    def is_reading(self) -> bool:
        """Whether the client may stop reading: always."""
        return True

    def feed(self, data: bytes, now: float) -> bytes:
        """Parse the next bytes, split anywhere; return the bytes to send: none.

        Raises:
            Rejected: the response is an error or not HTTP, or it is not resumable but should be.
        """
        data = self._rest + data if self._rest else data
        if not self._has_head:
            head, end, data = data.partition(HEAD_END)
            if not end:
                self._rest = head
                return b""
            if head.split(b" ", 2)[1] != b"200":
                raise Rejected(f"an answer is {head[:100].decode('latin-1')!r} {data[:300].decode('utf-8', 'replace')}")
            if self._is_resumable and RESUMABLE not in head:
                raise Rejected("an answer is not resumable; the server has no room for it")
            self._has_head = True
        position = 0
        while (end_of_size := data.find(LINE_END, position)) >= 0:
            begin = end_of_size + 2
            end_of_chunk = begin + int(data[position:end_of_size], 16)
            if len(data) < end_of_chunk + 2:
                break
            if begin == end_of_chunk:
                self._end()
            else:
                self._take(data[begin:end_of_chunk], now)
            position = end_of_chunk + 2
        self._rest = data[position:]
        return b""

    def poke(self, now: float) -> bytes:
        """Return the bytes to send without having read anything: none."""
        return b""

    def mark_lost(self) -> None:
        """Note that the connection has ended."""
        self.is_over = True

    def _take(self, chunk: bytes, now: float) -> None:
        self._check.count_bytes(len(chunk))
        *events, self._body = (self._body + chunk).split(self._separator)
        for event in events:
            for line in event.split(b"\n"):
                line = line.removeprefix(DATA)
                if line.startswith(b"{"):
                    self._read(orjson.loads(line), now)
                elif line == DONE:
                    self._has_finished = True

    def _read(self, payload: dict[str, Any], now: float) -> None:
        if "error" in payload:
            raise Rejected(f"a stream failed: {payload['error']}")
        text, is_last = self._api.read(payload)
        if text:
            self._check.take(text, now)
        self._has_finished |= is_last and self._ends_with_event

    def _end(self) -> None:
        self._check.is_done = self._has_finished
        self.is_over = True
