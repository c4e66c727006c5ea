"""A WebSocket ends although its client reads nothing more, and its streams end with it."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from app.server.websocket_protocol import WebSocketProtocol
from tests.api.chat_client import body
from tests.api.serving import until
from tests.fakes import FakeEngine
from tests.server.websocket_frames import QUIRE_V1, TEXT, frame
from tests.server.wire import Served, handshake, on_uvloop, served

CLOSE = 8


class StalledClient:
    """A client with an open stream that it does not read; the server's buffers are full."""

    def __init__(self, server: Served, engine: FakeEngine, streams: Any, protocol: WebSocketProtocol) -> None:
        self.server = server
        self.engine = engine
        self.streams = streams
        self.protocol = protocol


@asynccontextmanager
async def stalled_client(monkeypatch) -> AsyncIterator[tuple[StalledClient, socket.socket]]:
    """Serve, connect, and step the engine until the transport has unsent bytes."""
    apps, protocols, engine = [], [], FakeEngine(held=True)
    connection_made = WebSocketProtocol.connection_made

    def note(protocol, transport):
        protocols.append(protocol)
        connection_made(protocol, transport)

    monkeypatch.setattr(WebSocketProtocol, "connection_made", note)
    async with served(engine=engine, wrap=lambda app: apps.append(app) or app) as server:
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(server.address)
            peer.sendall(handshake(QUIRE_V1))
            await until(lambda: protocols and protocols[0].handshake_complete)
            start = {"t": "start", "id": "a", "request": body(max_tokens=1900), "credit": 1900}
            for message in ({"t": "hello", "protocol": "quire.v1"}, start):
                peer.sendall(frame(TEXT, json.dumps(message).encode()))
            await until(lambda: engine.requests)
            while not protocols[0].transport.get_write_buffer_size():
                engine.step()
                await asyncio.sleep(0.001)
            yield StalledClient(server, engine, apps[0].state.context.streams, protocols[0]), peer


@on_uvloop
async def test_a_shutdown_disconnects_a_client_that_closed_and_reads_nothing(monkeypatch):
    async with stalled_client(monkeypatch) as (client, peer):
        peer.sendall(frame(CLOSE, struct.pack("!H", 1000)))
        await until(lambda: client.streams.num_open == 0)
        client.protocol.shutdown()
        await until(lambda: client.server.num_connections == 0)


@on_uvloop
async def test_a_client_that_closed_and_reads_nothing_is_disconnected(monkeypatch):
    async with stalled_client(monkeypatch) as (client, peer):
        peer.sendall(frame(CLOSE, struct.pack("!H", 1000)))
        await until(lambda: client.server.num_connections == 0)
        assert client.streams.num_open == 0


@on_uvloop
async def test_a_client_that_answers_no_pings_and_reads_nothing_is_disconnected(monkeypatch, caplog):
    async with stalled_client(monkeypatch) as (client, _):
        client.protocol.keepalive_timeout()
        client.engine.step()
        await until(lambda: client.server.num_connections == 0)
        await until(lambda: client.streams.num_open == 0)
        assert len(client.engine.aborted) == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
