"""The attacking client of `attacks.py`: its connections, and counts of the responses.

It is not the load client: an attack sends what no other client would send, or leaves responses unread.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

ADDRESS = "127.0.0.2"


class Client:
    """The attacking client. `answers` counts what came back: HTTP statuses, frame types, and how connections ended."""

    def __init__(self, url: str, context: int) -> None:
        self.host, port = url.removeprefix("http://").rstrip("/").split(":")
        self.port = int(port)
        self.context = context
        self.answers: Counter[str] = Counter()
        self.is_answered = asyncio.Event()

    def note(self, answer: str) -> None:
        """Count what came back, or what was done where nothing can come back."""
        self.answers[answer] += 1
        self.is_answered.set()

    async def open(self, *, receive_buffer: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect from the attacker's address; a small `receive_buffer` (bytes) makes unread answers felt soon."""
        peer = socket.socket()
        peer.setblocking(False)
        if receive_buffer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        peer.bind((ADDRESS, 0))
        await asyncio.get_running_loop().sock_connect(peer, (self.host, self.port))
        return await asyncio.open_connection(sock=peer, limit=2**20)

    async def send(
        self, path: str, payload: bytes, **options: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send one POST and return the connection, nothing of the answer read."""
        reader, writer = await self.open(**options)
        head = f"POST {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(payload)}\r\n\r\n".encode() + payload)
        return reader, writer

    async def post(self, path: str, payload: bytes) -> None:
        """Send one POST and read the complete response; count its status."""
        reader, writer = await self.send(path, payload)
        try:
            line = await reader.readline()
            while await reader.read(2**18):
                pass
            self.note(line.split()[1].decode() if line else "cut")
        finally:
            writer.transport.abort()

    async def get(self, path: str, count: int) -> None:
        """Send `count` GETs over one connection, one after the other."""
        reader, writer = await self.open()
        try:
            for _ in range(count):
                writer.write(f"GET {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\n\r\n".encode())
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                self.note(head.split()[1].decode())
                length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
        finally:
            writer.transport.abort()

    async def socket(self, *, greet: bool = True) -> ClientConnection:
        """Open a WebSocket, with the greeting of quire.v1."""
        opened = await connect(
            f"ws://{self.host}:{self.port}/ws", subprotocols=["quire.v1"],  # type: ignore[list-item]
            proxy=None, compression=None, max_size=None, local_addr=(ADDRESS, 0), ping_interval=None,
        )  # fmt: skip
        if greet:
            await opened.send(json.dumps({"t": "hello", "protocol": "quire.v1"}))
            await opened.recv()
        return opened

    async def hear(self, opened: ClientConnection, *, only: str | None = None) -> None:
        """Read frames until the socket ends, or up to one of type `only`; note what they are."""
        async for text in opened:
            frame = json.loads(text)
            self.note(str(frame.get("code") or frame["t"]))
            if frame["t"] == only:
                return
