"""Messages of WebSockets that are not complete: how many bytes they may have together, and for how long."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace

import pytest
from websockets.frames import Opcode

from app.api.http import byte_shares
from app.api.http.byte_shares import ByteShares
from tests.api.serving import until
from tests.server.test_websocket_protocol import code_of, open_websocket, read_frames
from tests.server.websocket_frames import TEXT, frame
from tests.server.wire import LIMITS, Served, on_uvloop, served

NUM_BYTES = 150_000
# Without its last byte, and without its last fragment.
LARGE_FRAME = b"\x81\xff" + struct.pack("!Q", NUM_BYTES + 1) + bytes(4) + b" " * NUM_BYTES
FRAGMENTS = b"".join(frame(0 if number else TEXT, b" " * 50_000, fin=False) for number in range(3))


def shares_of(server: Served) -> ByteShares:
    shares: ByteShares = server.server.config.ws.keywords["received"]
    return shares


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one such message of a client."""
    monkeypatch.setattr(byte_shares, "MAX_BYTES", 2 * NUM_BYTES + 100_000)
    monkeypatch.setattr(byte_shares, "NUM_LARGEST", 0)


@pytest.mark.parametrize("sent", [LARGE_FRAME, FRAGMENTS], ids=["a frame", "fragments"])
@pytest.mark.usefixtures("small_shares")
@on_uvloop
async def test_what_is_more_than_a_clients_share_closes_its_socket(sent: bytes) -> None:
    async with served() as server:
        shares = shares_of(server)
        _, first = await open_websocket(server)
        first.write(sent)
        await until(lambda: shares.num_bytes >= NUM_BYTES)
        reader, second = await open_websocket(server)
        second.write(sent)
        assert code_of(await read_frames(reader)) == 4429
        assert NUM_BYTES <= shares.num_bytes < 2 * NUM_BYTES
        first.transport.abort()
        await until(lambda: shares.num_bytes == 0)
        reader, third = await open_websocket(server)
        third.write(sent)
        await until(lambda: shares.num_bytes >= NUM_BYTES)
        third.transport.abort()
        second.close()


@on_uvloop
async def test_a_message_that_the_application_has_counts_no_longer() -> None:
    may_read = asyncio.Event()
    received = list[str]()

    def slow(app):
        async def run(scope, receive, send):
            if scope["type"] != "websocket":
                return await app(scope, receive, send)
            await send({"type": "websocket.accept"})
            await receive()
            await may_read.wait()
            while (message := await receive())["type"] != "websocket.disconnect":
                received.append(message["text"])
            return None

        return run

    async with served(wrap=slow) as server:
        _, writer = await open_websocket(server)
        writer.write(LARGE_FRAME + b" ")
        await until(lambda: shares_of(server).num_bytes == NUM_BYTES + 1)
        may_read.set()
        await until(lambda: received == [" " * (NUM_BYTES + 1)])
        assert shares_of(server).num_bytes == 0
        writer.transport.abort()


@pytest.mark.parametrize("sent", [LARGE_FRAME, FRAGMENTS, b"\x81"], ids=["a frame", "fragments", "a byte"])
@on_uvloop
async def test_a_message_that_is_not_complete_in_time_closes_its_socket(sent: bytes) -> None:
    async with served(replace(LIMITS, body_timeout_s=0.3)) as server:
        reader, writer = await open_websocket(server)
        writer.write(sent)
        assert code_of(await read_frames(reader)) == 1008
        writer.close()
        await until(lambda: shares_of(server).num_bytes == 0)


@on_uvloop
async def test_the_time_of_a_message_ends_with_it() -> None:
    async with served() as server:
        reader, writer = await open_websocket(server)
        hello = frame(TEXT, b'{"t": "hello", "protocol": "quire.v1"}')
        (protocol,) = server.server.server_state.connections
        writer.write(hello[:-1])
        await until(lambda: protocol._timer is not None)
        began = protocol._timer
        writer.write(hello[-1:] + b"\x81")
        (_, welcome), *_ = await read_frames(reader, TEXT)
        assert b"welcome" in welcome
        await until(lambda: protocol._timer not in (None, began))
        assert began.cancelled()
        writer.transport.abort()


@on_uvloop
async def test_the_time_of_a_ping_is_not_that_of_the_next_message() -> None:
    async with served() as server:
        reader, writer = await open_websocket(server)
        (protocol,) = server.server.server_state.connections
        ping = frame(Opcode.PING, b"xy")
        writer.write(ping[:-1])
        await until(lambda: protocol._timer is not None)
        writer.write(ping[-1:])
        assert await read_frames(reader, Opcode.PONG) == [(Opcode.PONG, b"xy")]
        await until(lambda: protocol._timer is None)
        writer.transport.abort()
