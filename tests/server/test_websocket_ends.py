"""A WebSocket whose client takes nothing any more ends all the same, and leaves nothing behind."""

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
from tests.server.test_websocket_protocol import QUIRE_V1, TEXT, frame
from tests.server.wire import Served, handshake, on_uvloop, served

CLOSE = 8


class Stuck:
    """A client with an open stream, of which it takes nothing; the server has bytes it cannot get rid of."""

    def __init__(self, server: Served, engine: FakeEngine, streams: Any, protocol: WebSocketProtocol) -> None:
        self.server = server
        self.engine = engine
        self.streams = streams
        self.protocol = protocol


@asynccontextmanager
async def stuck(monkeypatch) -> AsyncIterator[tuple[Stuck, socket.socket]]:
    """Serve, connect, and let the engine speak until the transport is full."""
    apps, protocols, engine = [], [], FakeEngine(held=True)
    made = WebSocketProtocol.connection_made

    def note(protocol, transport):
        protocols.append(protocol)
        made(protocol, transport)

    monkeypatch.setattr(WebSocketProtocol, "connection_made", note)
    async with served(engine=engine, wrap=lambda app: apps.append(app) or app) as server:
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(server.address)
            peer.sendall(handshake(QUIRE_V1))
            await until(lambda: protocols and protocols[0].handshake_complete)
            start = {"t": "start", "id": "a", "request": body(max_tokens=1900), "credit": 1900}
            for said in ({"t": "hello", "protocol": "quire.v1"}, start):
                peer.sendall(frame(TEXT, json.dumps(said).encode()))
            await until(lambda: engine.requests)
            while not protocols[0].transport.get_write_buffer_size():
                engine.step()
                await asyncio.sleep(0.001)
            yield Stuck(server, engine, apps[0].state.context.streams, protocols[0]), peer


@on_uvloop
async def test_a_client_that_says_goodbye_and_reads_nothing_does_not_stop_the_server_from_stopping(monkeypatch):
    async with stuck(monkeypatch) as (client, peer):
        peer.sendall(frame(CLOSE, struct.pack("!H", 1000)))
        await until(lambda: client.streams.num_open == 0)
        client.protocol.shutdown()
        await until(lambda: client.server.num_connections == 0)


@on_uvloop
async def test_a_client_that_says_goodbye_and_reads_nothing_is_hung_up_on(monkeypatch):
    async with stuck(monkeypatch) as (client, peer):
        peer.sendall(frame(CLOSE, struct.pack("!H", 1000)))
        await until(lambda: client.server.num_connections == 0)
        assert client.streams.num_open == 0


@on_uvloop
async def test_a_client_that_answers_no_pings_and_reads_nothing_is_hung_up_on(monkeypatch, caplog):
    async with stuck(monkeypatch) as (client, _):
        client.protocol.keepalive_timeout()
        client.engine.step()
        await until(lambda: client.server.num_connections == 0)
        await until(lambda: client.streams.num_open == 0)
        assert len(client.engine.aborted) == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
