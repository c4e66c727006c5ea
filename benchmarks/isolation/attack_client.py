"""The attacking client: its connections, and counts of the responses.

It is not the load client: an attack sends what no other client would send, or leaves responses unread.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect

READ_BYTES = 2**18
_IPV6_FREEBIND = 78  # Linux: an address of a network that only a route makes local


class Client:
    """The attacking client. `answers` counts what came back: HTTP statuses, frame types, and how connections ended.

    Args:
        source: the address that it comes from, or a network, of which each connection has another address.
        key: the API key that it sends, if any.

    Raises:
        ValueError: the server is not on this machine.
    """

    def __init__(self, url: str, context: int, source: str = "127.0.0.2", key: str | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        if not ip_address(parts.hostname).is_loopback:
            raise ValueError(f"{url} is not on this machine; only a server on a loopback address is attacked.")
        self.host, self.port = parts.hostname, parts.port
        self.authority = parts.netloc
        self.context = context
        self.answers: Counter[str] = Counter()
        self.is_answered = asyncio.Event()
        self._network = ip_network(source)
        self._key = f"authorization: Bearer {key}\r\n" if key else ""

    def note(self, answer: str, count: int = 1) -> None:
        """Count what came back, or what was done where nothing can come back."""
        self.answers[answer] += count
        self.is_answered.set()

    def head(self, method: str, path: str) -> str:
        """Return the request line and the first headers of a request; a POST is one of JSON."""
        kind = "content-type: application/json\r\n" if method == "POST" else ""
        return f"{method} {path} HTTP/1.1\r\nhost: {self.authority}\r\n{self._key}{kind}"

    @asynccontextmanager
    async def connected(
        self, *, receive_buffer: int | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect from an address of the attacker; the connection is reset at the end of the block.

        A small `receive_buffer` (bytes) makes unread answers felt soon.
        """
        peer = await self._peer(receive_buffer)
        try:
            reader, writer = await asyncio.open_connection(sock=peer, limit=2**20)
        except BaseException:
            peer.close()
            raise
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _peer(self, receive_buffer: int | None) -> socket.socket:
        """Return a socket that is connected from an address of the attacker."""
        peer = socket.socket(socket.AF_INET if self._network.version == 4 else socket.AF_INET6)
        try:
            peer.setblocking(False)
            if receive_buffer is not None:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            if self._network.version == 6:
                peer.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
            peer.bind((str(self._network[random.randrange(self._network.num_addresses)]), 0))
            await asyncio.get_running_loop().sock_connect(peer, (self.host, self.port))
        except BaseException:
            peer.close()
            raise
        return peer

    @asynccontextmanager
    async def sending(
        self, path: str, payload: bytes, receive_buffer: int | None = None, headers: str = ""
    ) -> AsyncIterator[asyncio.StreamReader]:
        """Send one POST, with nothing of the answer read; the connection is reset at the end of the block.

        Each of `headers` ends with CRLF.
        """
        async with self.connected(receive_buffer=receive_buffer) as (reader, writer):
            head = f"{self.head('POST', path)}{headers}connection: close\r\ncontent-length: {len(payload)}\r\n\r\n"
            writer.write(head.encode() + payload)
            yield reader

    async def post(self, path: str, payload: bytes, within_s: float | None = None, headers: str = "") -> bytes:
        """Send one POST and read the complete response; count its status, and return the beginning of its body.

        After `within_s` the client hangs up. Each of `headers` ends with CRLF.
        """
        async with self.sending(path, payload, headers=headers) as reader:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    status, body = await _answer(reader)
                    self.note(status)
                    return body
            self.note("hung up")
            return b""

    async def ask(self, path: str, payload: bytes) -> bytes:
        """Send one POST that prepares the attack, and return the beginning of its answer's body. It is not counted."""
        async with self.sending(path, payload) as reader:
            return (await _answer(reader))[1]

    async def get(self, path: str, count: int, headers: str = "") -> None:
        """Send `count` GETs over one connection, one after the other; each of `headers` ends with CRLF."""
        await self.send_all("GET", [path] * count, headers)

    async def send_all(self, method: str, paths: Sequence[str], headers: str = "") -> None:
        """Send requests without a body over one connection, one after the other, and read their complete responses."""
        async with self.connected() as (reader, writer):
            for path in paths:
                writer.write(f"{self.head(method, path)}{headers}\r\n".encode("latin-1"))
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                self.note(head.split()[1].decode())
                length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(0 if method == "HEAD" else length)

    async def peek(self, method: str, path: str, payload: bytes = b"", headers: str = "") -> dict[str, str]:
        """Send one request, and hang up when its response has begun; count its status, and return its headers."""
        async with self.connected() as (reader, writer):
            head = f"{self.head(method, path)}{headers}content-length: {len(payload)}\r\n\r\n"
            writer.write(head.encode() + payload)
            status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.note(status.split()[1])
        pairs = (line.partition(": ") for line in lines if line)
        return {name.lower(): value for name, _, value in pairs}

    async def socket(self, *, greet: bool = True) -> ClientConnection:
        """Open a WebSocket, with the greeting of quire.v1."""
        opened = await self._opened("/ws", "quire.v1")
        if greet:
            await opened.send(json.dumps({"t": "hello", "protocol": "quire.v1"}))
            await opened.recv()
        return opened

    async def watch(self, receive_buffer: int | None = None) -> ClientConnection:
        """Open the live view; a small `receive_buffer` as for `connected`."""
        return await self._opened("/live", "quire.live.v1", receive_buffer)

    async def responses_socket(self) -> ClientConnection:
        """Open the WebSocket of responses."""
        return await self._opened("/v1/responses", None)

    async def _opened(self, path: str, protocol: str | None, receive_buffer: int | None = None) -> ClientConnection:
        protocols = None if protocol is None else [protocol]
        return await connect(
            f"ws://{self.authority}{path}", subprotocols=protocols,  # type: ignore[arg-type]
            proxy=None, compression=None, max_size=None, sock=await self._peer(receive_buffer), ping_interval=None,
        )  # fmt: skip

    async def hear(self, opened: ClientConnection, *upto: str) -> dict[str, Any]:
        """Read frames until the socket ends, or up to one of the types `upto`; note them, and return the last."""
        frame: dict[str, Any] = {}
        async for text in opened:
            frame = json.loads(text)
            self.note(str(frame.get("code") or frame["t"]))
            if frame["t"] in upto:
                break
        return frame


async def _answer(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Return the status of a response, and the beginning of its body."""
    line, content = await reader.readline(), b""
    while piece := await reader.read(READ_BYTES):
        content = content if len(content) > READ_BYTES else content + piece
    return line.split()[1].decode() if line else "cut", content.partition(b"\r\n\r\n")[2]
