"""A client of quire.v1 with its streams on one WebSocket, sans I/O; as cheap as it can be.

Credit: when the server announces a window, the client raises what it takes once half of it is used, at most
CREDITS_PER_S times a second for each stream.
"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from benchmarks.streams.control import Refused
from benchmarks.streams.tally import Tally

HEAD_END = b"\r\n\r\n"
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
CREDITS_PER_S = 8.0  # the server allows 10


class ChatClient:
    """One connection; the bytes to send first are `opening`, then what `feed` and `poke` return.

    Attributes:
        tallies: its streams; the client's id of each is its number.
        is_over: whether all streams, or the connection, have ended.
    """

    def __init__(self, tallies: Sequence[Tally], bodies: Sequence[dict[str, Any]], port: int) -> None:
        self.tallies = list(tallies)
        self.is_over = False
        self._bodies = bodies
        self._by_id = {str(tally.stream): tally for tally in tallies}
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
        """Whether the client has all it needs to stop reading and still be served: its streams are accepted."""
        return self._num_accepted == len(self._by_id)

    def feed(self, data: bytes, now: float) -> bytes:
        """Take the next bytes, cut anywhere; return what is to be sent.

        Raises:
            Refused: the server refuses the connection or a stream, or closes it.
        """
        data = self._rest + data if self._rest else data
        if not self._has_head:
            head, end, data = data.partition(HEAD_END)
            if not end:
                self._rest = head
                return b""
            if head.split(b" ", 2)[1] != b"101":
                raise Refused(f"a WebSocket is refused: {head[:100].decode('latin-1')!r} {data[:300]!r}")
            self._has_head, self._rest = True, data
            return _frame(TEXT, orjson.dumps({"t": "hello", "protocol": "quire.v1"})) + self.feed(b"", now)
        answers = []
        for opcode, payload in self._frames(data):
            if opcode == TEXT:
                answers.append(self._read(orjson.loads(payload), now, len(payload)))
            elif opcode == PING:
                answers.append(_frame(PONG, payload))
            elif opcode == CLOSE:
                self.lose()
                if not all(tally.is_done for tally in self.tallies):
                    raise Refused(f"a WebSocket was closed: {payload[:2].hex()} {payload[2:].decode()}")
        return b"".join(answers)

    def poke(self, now: float) -> bytes:
        """Return the credit frames that are due."""
        if not self._window:
            return b""
        return b"".join(self._credit(client_id, tally, now) for client_id, tally in self._by_id.items())

    def lose(self) -> None:
        """The connection has ended."""
        self.is_over = True

    def _frames(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the whole frames of `data`, keep the rest."""
        place, size = 0, len(data)
        while size - place >= 2:
            first, length = data[place], data[place + 1] & 0x7F
            begin = place + 2
            if length == 126:
                if size < place + 4:
                    break
                (length,) = struct.unpack_from(">H", data, begin)
                begin += 2
            elif length == 127:
                if size < place + 10:
                    break
                (length,) = struct.unpack_from(">Q", data, begin)
                begin += 8
            if size < begin + length:
                break
            yield first & 0x0F, data[begin : begin + length]
            place = begin + length
        self._rest = data[place:]

    def _read(self, frame: dict[str, Any], now: float, num_bytes: int) -> bytes:
        match frame["t"]:
            case "delta":
                client_id = frame["id"]
                tally = self._by_id[client_id]
                tally.count_bytes(num_bytes)
                tally.take(frame["x"], now, frame["n"], frame["k"])
                return self._credit(client_id, tally, now) if self._window else b""
            case "welcome":
                self._window = int(frame["limits"].get("window", 0))
                return b"".join(
                    _frame(TEXT, orjson.dumps({"t": "start", "id": str(tally.stream), "request": body}))
                    for tally, body in zip(self.tallies, self._bodies, strict=True)
                )
            case "accepted":
                self._num_accepted += 1
            case "done":
                self._by_id[frame["id"]].is_done = True
                self.is_over = all(tally.is_done for tally in self.tallies)
            case "error":
                raise Refused(f"a stream failed: {frame}")
            case "ping":
                return _frame(TEXT, orjson.dumps({"t": "pong", "ts": frame["ts"]}))
        return b""

    def _credit(self, client_id: str, tally: Tally, now: float) -> bytes:
        number, last_time = self._credits[client_id]
        if tally.number - number < self._window // 2 or now - last_time < 1 / CREDITS_PER_S:
            return b""
        self._credits[client_id] = (tally.number, now)
        frame = {"t": "credit", "id": client_id, "upto": [tally.number + self._window]}
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
