"""The application for tests: called in process for complete responses, served where bytes and time matter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from starlette.applications import Starlette

from app.api.app import create_app
from app.api.body import parse_request
from app.api.body.parse_request import Parser
from app.api.http.accounts import Sender
from app.api.http.context import ApiContext, StreamTimers
from app.api.routes.page import Page
from app.api.wire.api_request import ApiRequest
from app.api.wire.socket_stream import SocketStream
from app.checkpoint.checkpoint_folder import EMBEDDED
from app.checkpoint.names import resolve, served_name
from app.checkpoint.text_files import FolderText
from app.config.settings import Config, ModelConfig, make_config
from app.observe.log_writer import LogCounts
from app.observe.metrics import Metrics
from app.server.run import uvicorn_config
from app.server.sockets import listen
from app.streaming.flow.ack_monitor import AckMonitor
from app.text.entry.frontend import TextFrontend
from app.text.grammar.cache import GrammarCache
from tests.fakes import FakeEngine
from tests.quick_server import QuickServer
from tests.text.templates import WHOLE_CHAT

FAST = StreamTimers(waiting_s=0.02, generating_s=0.02)
SLOW = StreamTimers(waiting_s=60, generating_s=60)
HANG_S = 240
VOCAB_SIZE, EOS = 3584, 3  # of `guide`
JSON = {"content-type": "application/json"}


def raw(body: dict[str, Any]) -> bytes:
    """A body as it comes over the wire."""
    return json.dumps(body).encode()


async def make_app(
    engine: FakeEngine | None = None,
    config: Config | None = None,
    timers: StreamTimers = SLOW,
    grammars: GrammarCache | None = None,
    **settings: object,
) -> Starlette:
    """The application over a fake engine."""
    config = config or make_config(settings)
    metrics = Metrics(served_name(config.model), config.cache)
    metrics.include(LogCounts)
    with patch("app.api.app.Page", page):
        return create_app(engine or FakeEngine(), config, load_text(config), metrics, timers, grammars)


def with_grammars(app: Starlette) -> Starlette:
    """The application with the vocabulary of `guide`, so that it compiles grammars."""
    context = app.state.context
    assert context.grammars.load(context.text.tokenizer, VOCAB_SIZE, (EOS,)) is None
    return app


@cache
def page() -> Page:
    """The files of the page, which an application only reads; to compress them takes as long as a small test."""
    return Page()


async def parse(
    body: bytes, context: ApiContext, parser: Parser, sender: Sender | None = None, *, always_streams: bool = False
) -> ApiRequest:
    """Parse a body, and lease its grammar; the sender is anonymous unless one is given."""
    return await parse_request.parse_answer(body, context, parser, sender or Sender(), always_streams=always_streams)


def load_text(config: Config) -> TextFrontend:
    """The text frontend of the configured model, which is not changed; that of `guide` is read once."""
    return text_of_guide() if config.model == ModelConfig() else load(config.model)


@cache
def text_of_guide() -> TextFrontend:
    """The text frontend of `guide`."""
    return load(ModelConfig())


def load(settings: ModelConfig) -> TextFrontend:
    """Read the text frontend of a model; `guide` has a chat template that shows the whole conversation."""
    if settings.model == EMBEDDED and settings.chat_template is None:
        settings = replace(settings, chat_template=str(WHOLE_CHAT))
    return TextFrontend.load(settings, FolderText(resolve(settings.model)))


def client_of(app: Starlette, **headers: str) -> httpx.AsyncClient:
    """An HTTP client that calls the application in process; it returns complete responses only."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=headers)


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """Serve the application as the product does, on a free port of the loopback; yields its URL."""
    settings = app.state.context.config
    listener = listen("127.0.0.1", 0, settings.server)
    config = uvicorn_config(
        app, settings, log=app.state.request_log, shapes=app.state.error_shapes, received=app.state.context.received
    )
    config.timeout_graceful_shutdown = 1
    server = QuickServer(config)
    task = asyncio.create_task(server._serve([listener]))
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, within the hang limit."""
    async with asyncio.timeout(HANG_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


def looks(monkeypatch: pytest.MonkeyPatch, kind: type[AckMonitor | SocketStream]) -> Callable[[], Awaitable[None]]:
    """Count how often objects of a class look for stalls; return a function that waits for the next time.

    So tests last for so many looks, whatever time a busy machine takes for them.
    """
    found: list[float] = []
    has_stalled = kind.has_stalled

    def counted(watched: Any, now: float) -> bool:
        found.append(now)
        return has_stalled(watched, now)

    async def next_look() -> None:
        num_before = len(found)
        await until(lambda: len(found) > num_before)

    monkeypatch.setattr(kind, "has_stalled", counted)
    return next_look


class Connection:
    """A raw HTTP connection: what goes over the wire, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, url: str, *, receive_buffer: int | None = None) -> Connection:
        """Connect to a served application; with a small `receive_buffer` (bytes) the server's writes block early.

        Then this end does not read ahead either.
        """
        host, _, port = url.removeprefix("http://").partition(":")
        peer = socket.socket()
        peer.setblocking(False)
        if receive_buffer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(peer, (host, int(port)))
        return cls(*await asyncio.open_connection(sock=peer, limit=receive_buffer or 2**16))

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> None:
        """Send a request; nothing is read."""
        payload = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(payload)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in (JSON | headers).items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + payload)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the status line and headers of the response."""
        async with asyncio.timeout(HANG_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = [line.partition(": ") for line in lines[1:] if line]
        return int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs}

    async def chunk(self) -> bytes:
        """Read one chunk of a chunked body; b"" is its end."""
        async with asyncio.timeout(HANG_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def chunks(self) -> list[bytes]:
        """Read all chunks up to the end of the body."""
        found = []
        while chunk := await self.chunk():
            found.append(chunk)
        return found

    async def close(self) -> None:
        """Close the connection, if the server has not."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def connected(url: str, *, receive_buffer: int | None = None) -> AsyncIterator[Connection]:
    """A raw connection for the time of the block."""
    connection = await Connection.open(url, receive_buffer=receive_buffer)
    try:
        yield connection
    finally:
        await connection.close()
