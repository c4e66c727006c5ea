"""The lower bound: a bare protocol on uvloop that writes the bytes of one event per token, and nothing else.

The events are byte for byte as long as the server's, chunk and all; no HTTP parser, no engine thread, no tasks.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import cast

from app.runtime.clock import monotonic
from benchmarks.streams.script import prefix_of, read_seed, stamp_of

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-store\r\n"
    b"x-accel-buffering: no\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
)
EVENT = (
    'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1700000000,'
    '"model":"guide","choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"


class BareServer:
    """All streams of a bare server, and the pace of their tokens. Loop only.

    Attributes:
        cpu_s: CPU seconds spent on making texts, which in a server is the engine's work.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.streams: set[BareStream] = set()
        self._ended: dict[int, int] = {}
        self._rate = 0.0
        self._next_tick = 0.0
        self._due: asyncio.Handle | None = None

    @property
    def num_open(self) -> int:
        """How many streams are open."""
        return len(self.streams)

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Serve on a listening socket; return the server, which can be closed."""
        return await asyncio.get_running_loop().create_server(lambda: BareStream(self), sock=listener)

    def tokens(self) -> dict[int, int]:
        """Return how many tokens were made for each stream, open or ended."""
        return {**self._ended, **{stream.number_of_stream: stream.num_tokens for stream in self.streams}}

    def pace(self, rate: float) -> None:
        if self._due is not None:
            self._due.cancel()
        self._rate = rate
        if rate:
            loop = asyncio.get_running_loop()
            self._next_tick = monotonic() + 1 / rate
            self._due = loop.call_later(1 / rate, self._step)

    def quiet_time(self) -> float:
        return self._next_tick - 1 / (4 * self._rate) if self._rate else monotonic()

    def finish(self) -> None:
        """End all open streams."""
        for stream in list(self.streams):
            stream.finish()

    def drop(self, stream: BareStream) -> None:
        """Forget a stream that has ended."""
        if stream in self.streams:
            self.streams.remove(stream)
            self._ended[stream.number_of_stream] = stream.num_tokens

    def _step(self) -> None:
        loop = asyncio.get_running_loop()
        began = time.thread_time()
        stamp = f"{stamp_of(monotonic()):08x}"
        due = [(stream, stream.text(stamp)) for stream in self.streams if not stream.is_full]
        self.cpu_s += time.thread_time() - began
        for stream, text in due:
            stream.write((EVENT % text).encode())
        self._next_tick += 1 / self._rate
        self._due = loop.call_later(max(self._next_tick - monotonic(), 0.0), self._step)


class BareStream(asyncio.Protocol):
    """One connection and its one stream.

    Attributes:
        number_of_stream: which one, from the request's seed.
        num_tokens: the number of its tokens.
        is_full: whether the client does not read pending bytes.
    """

    def __init__(self, server: BareServer) -> None:
        self.number_of_stream = self.num_tokens = 0
        self.is_full = False
        self._server = server
        self._prefix = ""
        self._request = b""
        self._transport: asyncio.Transport | None = None

    def connection(self) -> asyncio.Transport:
        """Return the connection, once there is one."""
        assert self._transport is not None
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it

    def data_received(self, data: bytes) -> None:
        """Begin when the body is complete."""
        self._request += data
        _, end, body = self._request.partition(b"\r\n\r\n")
        if end and body.endswith(b"}") and not self._prefix:
            self.number_of_stream, _ = read_seed(json.loads(body)["seed"])
            self._prefix = prefix_of(self.number_of_stream)
            self._server.streams.add(self)
            self.connection().write(HEAD)

    def connection_lost(self, error: Exception | None) -> None:
        """Remove the stream."""
        self._server.drop(self)

    def pause_writing(self) -> None:
        """Generate no tokens."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Generate tokens again."""
        self.is_full = False

    def text(self, stamp: str) -> str:
        """Return the next token."""
        self.num_tokens += 1
        return f"{self._prefix}{self.num_tokens:05x}{stamp}"

    def write(self, event: bytes) -> None:
        """Send one event as a chunk."""
        self.connection().write(b"%x\r\n%b\r\n" % (len(event), event))

    def finish(self) -> None:
        """Send the end."""
        self.write(DONE)
        self.connection().write(b"0\r\n\r\n")
        self.connection().close()
        self._server.drop(self)
