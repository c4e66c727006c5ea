"""Serves the application as `quire serve` does, with its guard and event loop, and exchanges raw bytes with it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from app.config.settings import make_config
from app.server.guard import ConnectionLimits, Guard
from app.server.run import uvicorn_config
from app.server.sockets import listen
from tests.api.serving import HANG_S, make_app, until
from tests.fakes import FakeEngine
from tests.quick_server import QuickServer

# A busy machine may take long to send a request that is complete, so that only tests of timeouts have short ones; and
# long enough for many more pings to be allowed, so that the burst is all.
LIMITS = ConnectionLimits(
    head_timeout_s=HANG_S,
    body_timeout_s=HANG_S,
    body_grace_s=HANG_S,
    linger_s=0.2,
    close_timeout_s=0.2,
    max_pings_per_s=1e-6,
)
IMPATIENT = replace(LIMITS, head_timeout_s=0.3, body_timeout_s=1.0, body_grace_s=0.3)
CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()
HOST = b"Host: localhost\r\n"
READYZ = b"GET /readyz HTTP/1.1\r\n" + HOST + b"\r\n"


def post(*headers: bytes, body: bytes = b"") -> bytes:
    """A POST of a chat with further header lines; its body as it is given."""
    lines = [f"POST {CHAT} HTTP/1.1".encode(), HOST.strip(), b"Content-Type: application/json", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def handshake(*headers: bytes, path: bytes = b"/ws", version: bytes = b"13") -> bytes:
    """The request that opens a WebSocket."""
    lines = [b"GET " + path + b" HTTP/1.1", HOST.strip(), b"Upgrade: websocket", b"Connection: Upgrade"]
    lines += [b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", b"Sec-WebSocket-Version: " + version]
    return b"\r\n".join([*lines, *headers]) + b"\r\n\r\n"


@dataclass
class Served:
    """A server in this process."""

    server: uvicorn.Server
    address: tuple[str, int]
    engine: FakeEngine

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    @property
    def num_connections(self) -> int:
        return len(self.server.server_state.connections)

    async def is_ready(self) -> bool:
        """Whether a new connection gets its response, also within short limits, and no other connection is open."""
        guard = guard_of(self)
        limits, guard.limits = guard.limits, replace(guard.limits, head_timeout_s=HANG_S)
        answers = await self.send(READYZ.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        guard.limits = limits
        await until(lambda: self.num_connections == 0)
        return [answer.status for answer in answers] == [200]

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address)

    async def send(self, *pieces: bytes) -> list[Response]:
        """Send pieces, each in its own segment, and read all responses until the server closes the connection."""
        reader, writer = await self.open()
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            return parse_responses(await read_all(reader))
        finally:
            writer.close()


@dataclass
class Response:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str | None:
        """The code of an error; asserts the shape of the error."""
        if self.status < 400:
            return None
        assert self.headers["content-type"] == "application/json"
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["code"])


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Read to the end of the connection, which may be a reset."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(HANG_S):
            while piece := await reader.read(65536):
                found += piece
    return bytes(found)


def parse_responses(wire: bytes) -> list[Response]:
    """Parse all responses of a connection; bodies have a Content-Length."""
    answers = []
    while wire:
        head, _, wire = wire.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        size = int(headers.get("content-length", 0))
        answers.append(Response(int(lines[0].split()[1]), headers, wire[:size]))
        wire = wire[size:]
    return answers


@asynccontextmanager
async def served(
    limits: ConnectionLimits = LIMITS,
    *,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    engine: FakeEngine | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve the application on a free port of the loopback."""
    engine = engine or FakeEngine()
    config = make_config(settings)
    app = wrap(await make_app(engine, config))
    listener = listen("127.0.0.1", 0, config.server)
    server = QuickServer(uvicorn_config(app, config, limits))
    task = asyncio.create_task(server._serve([listener]))
    await until(lambda: server.started)
    try:
        yield Served(server, listener.getsockname()[:2], engine)
    finally:
        server.should_exit = True
        await task


def guard_of(served: Served) -> Guard:
    """The guard that the connections of a server share."""
    guard: Guard = served.server.config.http.keywords["guard"]
    return guard


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on the event loop of `quire serve`: loops differ in the order of their callbacks."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def num_descriptors() -> int:
    """The number of open files and sockets of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))
