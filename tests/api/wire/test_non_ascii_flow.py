"""Flow control counts bytes, not characters: non-ASCII text on a real socket."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from app.runtime.stall_detector import MIN_OBSERVATIONS
from app.streaming.flow.ack_monitor import AckMonitor
from tests.api.chat_client import HELLO, body, open_chat, text
from tests.api.serving import HANG_S, SLOW, looks, make_app, serving
from tests.fakes import FakeEngine, Script

NUM_TOKENS = 1900
SLOW_PIECE_BYTES = 2048
TEXTS = {"chinese": "猫在垫子上" * 12, "emoji": "🙂👩‍👩‍👧🏳️‍🌈" * 4, "ascii": "the cat " * 20}


def masked(frame: dict[str, object]) -> bytes:
    """A client's text frame; a mask of zeros leaves its payload as it is."""
    payload = json.dumps(frame).encode()
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else bytes([0x80 | 126]) + len(payload).to_bytes(2)
    return b"\x81" + size + bytes(4) + payload


class RawSocket:
    """A WebSocket without a library that reads ahead."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    @classmethod
    async def open(cls, url: str) -> RawSocket:
        """Connect, send `hello` and start a long stream."""
        host, _, port = url.removeprefix("http://").partition(":")
        peer = socket.socket()
        peer.setblocking(False)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lines = ["GET /ws HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
        lines += ["Sec-WebSocket-Protocol: quire.v1", "", ""]
        start = {"t": "start", "id": "a", "request": body(max_tokens=NUM_TOKENS), "credit": NUM_TOKENS}
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, (host, int(port)))
        await loop.sock_sendall(peer, "\r\n".join(lines).encode())
        found = cls(peer)
        assert (await found.read(4096)).startswith(b"HTTP/1.1 101")
        await loop.sock_sendall(peer, masked(HELLO) + masked(start))
        return found

    async def read(self, size: int) -> bytes:
        """Read at most `size` bytes; b"" is the end."""
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._peer, size), HANG_S)

    def close(self) -> None:
        """Close the connection."""
        self._peer.close()


@pytest.mark.parametrize("kind", TEXTS)
async def test_every_byte_sent_is_counted(kind: str, monkeypatch):
    counted = []
    monkeypatch.setattr(AckMonitor, "note_sent", lambda monitor, num_bytes: counted.append(num_bytes))
    async with open_chat(FakeEngine(Script(answer=[TEXTS[kind]] * 50))) as chat:
        await chat.send(t="start", id="a", request=body(max_tokens=50), credit=50)
        frames: list[str] = []
        while not frames or json.loads(frames[-1])["t"] != "done":
            frames.append(await asyncio.wait_for(chat.socket.recv(), HANG_S))
    assert text([json.loads(frame) for frame in frames]) == TEXTS[kind] * 50
    assert counted[-len(frames) :] == [len(frame.encode()) for frame in frames]


@pytest.mark.parametrize("kind", TEXTS)
async def test_a_slow_reader_is_not_disconnected(kind: str, monkeypatch):
    engine = FakeEngine(Script(answer=[TEXTS[kind]] * NUM_TOKENS))
    next_look = looks(monkeypatch, AckMonitor)
    app = await make_app(engine, None, SLOW, stall_timeout=0.5)
    async with serving(app) as url:
        reader, taken = await RawSocket.open(url), b""
        while b'"t":"done"' not in taken[-1000:]:
            is_slow = len(taken) < 3 * MIN_OBSERVATIONS * SLOW_PIECE_BYTES
            if is_slow:
                await next_look()
            piece = await reader.read(SLOW_PIECE_BYTES if is_slow else 65536)
            assert piece, f"disconnected after {len(taken)} bytes"
            taken += piece
            await asyncio.sleep(0)
        reader.close()
    assert engine.aborted == []
    assert taken.count(TEXTS[kind].encode()) == NUM_TOKENS
