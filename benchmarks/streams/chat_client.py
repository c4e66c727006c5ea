"""A client of quire.v1 with its streams on one WebSocket, sans I/O; it uses little CPU time.

Credit: if the server announces a window, the client grants more when half of it is used, at most CREDITS_PER_S times a
second for each stream.
"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from benchmarks.streams.control import Rejected
from benchmarks.streams.stream_check import StreamCheck

HEAD_END = b"\r\n\r\n"
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
CREDITS_PER_S = 8.0  # the server allows 10
TTL_S = 60


class ChatClient:
    """One connection; the bytes to send first are `opening`, then what `feed` and `poke` return.

    With `is_resumable` its streams outlive it.

    Attributes:
        checks: its streams; the client's id of each is its number.
        is_over: whether all streams, or the connection, have ended.
    """

    def __init__(
        self, checks: Sequence[StreamCheck], bodies: Sequence[dict[str, Any]], port: int, *, is_resumable: bool = False
    ) -> None:
        self.checks = list(checks)
        self.is_over = False
        self._bodies = bodies
        self._kept = {"ttl_s": TTL_S} if is_resumable else {}
        self._by_id = {str(check.stream): check for check in checks}
        self._has_head = False
        self._rest = b""
        self._num_accepted = 0
        self._window = 0
        self._credits = dict.fromkeys(self._by_id, (0, 0.0))  # the last token acknowledged, and when
        key = base64.b64encode(os.urandom(16)).decode()
        self.opening = (
            f"GET /ws HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            f"sec-websocket-key: {key}\r\nsec-websocket-version: 13\r\nsec-websocket-protocol: quire.v1\r\n\r\n"
        ).encode()

    @property
    def is_reading(self) -> bool:
        """Whether the client may stop reading: its streams are accepted."""
        return self._num_accepted == len(self._by_id)

    def feed(self, data: bytes, now: float) -> bytes:
        """Parse the next bytes, split anywhere; return the bytes to send.

        Raises:
            Rejected: the server rejects the connection or a stream, closes it, or does not keep what it should.
        """
        data = self._rest + data if self._rest else data
        if not self._has_head:
            head, end, data = data.partition(HEAD_END)
            if not end:
                self._rest = head
                return b""
            if head.split(b" ", 2)[1] != b"101":
                raise Rejected(f"a WebSocket was rejected: {head[:100].decode('latin-1')!r} {data[:300]!r}")
            self._has_head, self._rest = True, data
            return _frame(TEXT, orjson.dumps({"t": "hello", "protocol": "quire.v1"})) + self.feed(b"", now)
        answers = []
        for opcode, payload in self._frames(data):
            if opcode == TEXT:
                answers.append(self._read(orjson.loads(payload), now, len(payload)))
            elif opcode == PING:
                answers.append(_frame(PONG, payload))
            elif opcode == CLOSE:
                self.mark_lost()
                if not all(check.is_done for check in self.checks):
                    raise Rejected(f"a WebSocket was closed: {payload[:2].hex()} {payload[2:].decode()}")
        return b"".join(answers)

    def poke(self, now: float) -> bytes:
        """Return the credit frames that are due."""
        if not self._window:
            return b""
        return b"".join(self._credit(client_id, check, now) for client_id, check in self._by_id.items())

    def mark_lost(self) -> None:
        """Note that the connection has ended."""
        self.is_over = True

    def _frames(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the complete frames of `data`, keep the rest."""
        position, size = 0, len(data)
        while size - position >= 2:
            first, length = data[position], data[position + 1] & 0x7F
            begin = position + 2
            if length == 126:
                if size < position + 4:
                    break
                (length,) = struct.unpack_from(">H", data, begin)
                begin += 2
            elif length == 127:
                if size < position + 10:
                    break
                (length,) = struct.unpack_from(">Q", data, begin)
                begin += 8
            if size < begin + length:
                break
            yield first & 0x0F, data[begin : begin + length]
            position = begin + length
        self._rest = data[position:]

    def _read(self, frame: dict[str, Any], now: float, num_bytes: int) -> bytes:
        match frame["t"]:
            case "delta":
                client_id = frame["id"]
                check = self._by_id[client_id]
                check.count_bytes(num_bytes)
                check.take(frame["x"], now, frame["n"], frame["k"])
                return self._credit(client_id, check, now) if self._window else b""
            case "welcome":
                self._window = int(frame["limits"].get("window", 0))
                return b"".join(
                    _frame(TEXT, orjson.dumps({"t": "start", "id": str(check.stream), "request": body, **self._kept}))
                    for check, body in zip(self.checks, self._bodies, strict=True)
                )
            case "accepted":
                self._num_accepted += 1
                if self._kept and not frame["ttl_s"]:
                    raise Rejected("a stream is not resumable; the server has no room for it")
            case "done":
                self._by_id[frame["id"]].is_done = True
                self.is_over = all(check.is_done for check in self.checks)
            case "error":
                raise Rejected(f"a stream failed: {frame}")
            case "ping":
                return _frame(TEXT, orjson.dumps({"t": "pong", "ts": frame["ts"]}))
        return b""

    def _credit(self, client_id: str, check: StreamCheck, now: float) -> bytes:
        number, last_time = self._credits[client_id]
        if check.number - number < self._window // 2 or now - last_time < 1 / CREDITS_PER_S:
            return b""
        self._credits[client_id] = (check.number, now)
        frame = {"t": "credit", "id": client_id, "upto": [check.number + self._window]}
        return _frame(TEXT, orjson.dumps(frame))


def _frame(opcode: int, payload: bytes) -> bytes:
    """Return a client's frame; the mask is required, and may be zero."""
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", 0x80 | opcode, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, 0x80 | 127, size)
    return head + b"\0\0\0\0" + payload
