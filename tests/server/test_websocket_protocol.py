"""Frames that close a WebSocket with an error code, and that other connections are unaffected."""

import asyncio
import gc
import logging
import struct
from dataclasses import replace

import pytest
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from app.api.routes.websocket import ChatSocket
from app.observe.log import ACCESS_LOGGER
from app.runtime.gc_tuning import without_gc
from app.server.http_protocol import HttpProtocol
from app.server.websocket_protocol import WebSocketProtocol, text_frame
from app.streaming.chat_protocol import ChatProtocol
from tests.api.serving import HANG_S, until
from tests.server.websocket_frames import QUIRE_V1, TEXT, frame
from tests.server.wire import HOST, LIMITS, handshake, num_descriptors, on_uvloop, served

MAX_BYTES = 4096


def close(payload: bytes) -> bytes:
    return frame(Opcode.CLOSE, payload)


CONT, BINARY, PING = Opcode.CONT, Opcode.BINARY, Opcode.PING
PIECES = 1000
# The bytes of a client after the handshake, and the code of the close.
REJECTED = {
    "83 unmasked": (frame(TEXT, b"x", mask=False), 1002),
    "83 RSV": (frame(TEXT, b"x", rsv=True), 1002),
    "83 a reserved opcode": (frame(3, b"x"), 1002),
    "83 a fragmented ping": (frame(PING, b"x", fin=False), 1002),
    "83 a ping of 126 bytes": (frame(PING, b"x" * 126), 1002),
    "83 a continuation of nothing": (frame(CONT, b"x"), 1002),
    "83 a message in a message": (frame(TEXT, b"x", fin=False) + frame(TEXT, b"x"), 1002),
    "83 a close code that is none": (close(struct.pack("!H", 999)), 1002),
    "83 a close of one byte": (close(b"\x03"), 1002),
    "84 bad UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "84 bad UTF-8 in two fragments": (frame(TEXT, b"\xc3", fin=False) + frame(CONT, b"\x28"), 1007),
    "84 a surrogate": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "86 a large message": (frame(TEXT, b" " * (MAX_BYTES + 1)), 1009),
    "86 a large sum of fragments": (frame(TEXT, b" " * MAX_BYTES, fin=False) + frame(CONT, b" "), 1009),
    "86 a declared length of 2^40": (b"\x81\xff" + struct.pack("!Q", 2**40) + b"abcd", 1009),
    "87 1,001 fragments": (frame(TEXT, fin=False) + frame(CONT, fin=False) * PIECES, 1008),
    "87 10,000 fragments": (frame(TEXT, fin=False) + frame(CONT, fin=False) * 10_000, 1008),
    "88 20,000 pings": (frame(PING) * 20_000, 4429),
    "88 51 pings": (frame(PING, b"x") * 51, 4429),
    "85 binary": (frame(BINARY, b"x"), 1003),
}


async def open_websocket(server):
    """Open a WebSocket; return its reader and writer."""
    reader, writer = await server.open()
    writer.write(handshake(QUIRE_V1))
    async with asyncio.timeout(HANG_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return reader, writer


async def read_frames(reader, until_opcode=None):
    """Read the server's frames up to the end, or to the first of a kind, as (opcode, payload)."""
    found = []
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                first, size = await reader.readexactly(2)
                size = int.from_bytes(await reader.readexactly(2)) if size == 126 else size
                found.append((first & 15, await reader.readexactly(size)))
            except (asyncio.IncompleteReadError, ConnectionError):
                return found
            if found[-1][0] == until_opcode:
                return found


def code_of(frames) -> int:
    """The code of the close frame, which must be the last."""
    opcode, payload = frames[-1]
    assert opcode == Opcode.CLOSE
    return int.from_bytes(payload[:2])


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("case", REJECTED)
@on_uvloop
async def test_an_invalid_frame_closes_the_socket_with_its_code_and_affects_no_other(case, in_pieces, caplog):
    wire, code = REJECTED[case]
    caplog.set_level(logging.INFO)
    # A busy machine may take longer for all pieces than the server waits before it closes.
    limits = replace(LIMITS, linger_s=HANG_S) if in_pieces else LIMITS
    async with served(limits, max_request_bytes=MAX_BYTES) as server:
        reader, writer = await open_websocket(server)
        for start in range(0, len(wire), 100 if in_pieces else len(wire)):
            writer.write(wire[start : start + 100] if in_pieces else wire)
            if in_pieces:
                await asyncio.sleep(0)
        frames = []
        if in_pieces:
            frames += await read_frames(reader, Opcode.CLOSE)
            writer.write_eof()
        frames += await read_frames(reader)
        assert code_of(frames) == code
        writer.close()
        assert await server.is_ready()
        lines = [record.fields for record in caplog.records if record.name == ACCESS_LOGGER]
        assert [line["status"] for line in lines] == [101]
        assert lines[0]["reason"] in (f"closed_{code}", None)
        assert [record for record in caplog.records if record.levelno > logging.INFO or record.exc_info] == []


@pytest.mark.parametrize("case", ["84 bad UTF-8", "87 1,001 fragments", "88 51 pings"])
@on_uvloop
async def test_the_log_line_has_the_close_code(case, caplog):
    wire, code = REJECTED[case]
    caplog.set_level(logging.INFO)
    async with served() as server:
        reader, writer = await open_websocket(server)
        writer.write(wire)
        await read_frames(reader)
        writer.close()
        await until(lambda: server.num_connections == 0)
    assert [record.fields["reason"] for record in caplog.records] == [f"closed_{code}"]


@on_uvloop
async def test_a_thousand_fragments_are_one_message():
    hello = b'{"t": "hello", "protocol": "quire.v1"}'
    async with served() as server:
        reader, writer = await open_websocket(server)
        pieces = [hello[:1], *[b""] * (PIECES - 2), hello[1:]]
        last = len(pieces) - 1
        for number, piece in enumerate(pieces):
            writer.write(frame(CONT if number else TEXT, piece, fin=number == last))
        (_, welcome), *_ = await read_frames(reader, Opcode.TEXT)
        assert b'"welcome"' in welcome
        writer.close()


@on_uvloop
async def test_50_pings_at_once_are_answered_in_order():
    async with served() as server:
        reader, writer = await open_websocket(server)
        writer.write(b"".join(frame(PING, b"%d" % number) for number in range(50)))
        async with asyncio.timeout(HANG_S):
            for number in range(50):
                _, size = await reader.readexactly(2)
                assert await reader.readexactly(size) == b"%d" % number
        writer.close()


@on_uvloop
async def test_parsing_pauses_while_the_application_reads_no_messages():
    may_read = asyncio.Event()
    received = []

    def slow(app):
        async def run(scope, receive, send):
            if scope["type"] != "websocket":
                return await app(scope, receive, send)
            await send({"type": "websocket.accept"})
            await may_read.wait()
            while (message := await receive())["type"] != "websocket.disconnect":
                received.append(message.get("text"))
            return None

        return run

    async with served(wrap=slow) as server:
        reader, writer = await server.open()
        writer.write(handshake())
        await reader.readuntil(b"\r\n\r\n")
        num_messages = 20_000
        writer.write(b"".join(frame(TEXT, b"%d" % number) for number in range(num_messages)) + close(b"\x03\xe8"))
        (protocol,) = server.server.server_state.connections
        await until(lambda: protocol.read_paused)
        assert protocol.queue.qsize() < 1000
        may_read.set()
        await read_frames(reader)
        await until(lambda: server.num_connections == 0)
        assert received == [None, *map(str, range(num_messages))]
        writer.close()


@on_uvloop
async def test_a_client_that_ignores_a_close_is_disconnected():
    async with served() as server:
        reader, writer = await open_websocket(server)
        writer.write(frame(TEXT, b"\xff"))
        assert code_of(await read_frames(reader, Opcode.CLOSE)) == 1007
        for _ in range(100):
            writer.write(frame(PING) * 100)
        await until(lambda: server.num_connections == 0)
        writer.close()


@on_uvloop
async def test_frames_before_the_end_of_the_handshake_close_the_connection(caplog):
    held = asyncio.Event()

    def hold(app):
        async def held_back(scope, receive, send):
            if scope["type"] == "websocket":
                await held.wait()
            await app(scope, receive, send)

        return held_back

    async with served(wrap=hold) as server:
        reader, writer = await server.open()
        writer.write(handshake(QUIRE_V1))
        await until(lambda: server.server.server_state.tasks)
        writer.write(b"\xff\xff garbage")
        assert await read_frames(reader) == []
        held.set()
        await until(lambda: not server.server.server_state.tasks)
        writer.close()
        assert await server.is_ready()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@on_uvloop
async def test_a_handshake_that_the_library_drops_gets_a_400():
    """The library accepts no line over 8 KiB, whatever the configured limit is."""
    async with served(replace(LIMITS, max_handshake_bytes=LIMITS.max_head_bytes)) as server:
        (answer,) = await server.send(handshake(b"X: " + b"a" * 9000))
        assert (answer.status, answer.code) == (400, "http_invalid")
        assert await server.is_ready()


@pytest.mark.parametrize(
    ("request_bytes", "rejection"),
    [
        (handshake(b"Origin: http://evil.example"), (403, "permission_denied")),
        (handshake(path=b"/nope"), (404, "not_found")),
    ],
)
@on_uvloop
async def test_a_rejected_handshake_is_logged_without_an_error(request_bytes, rejection, caplog):
    caplog.set_level(logging.INFO)
    async with served() as server:
        (answer,) = await server.send(request_bytes)
        assert (answer.status, answer.code) == rejection
        assert await server.is_ready()
    assert [(record.name, record.levelno) for record in caplog.records] == [(ACCESS_LOGGER, logging.INFO)]


@on_uvloop
async def test_hundreds_of_hostile_websockets_leak_no_descriptors():
    async with served(max_request_bytes=MAX_BYTES) as server:
        assert await server.is_ready()
        gc.collect()  # what other tests left open
        before = num_descriptors()

        async def attack(wire):
            reader, writer = await open_websocket(server)
            writer.write(wire)
            await read_frames(reader)
            writer.close()

        for _ in range(10):
            await asyncio.gather(*(attack(wire) for wire, _ in REJECTED.values()))
        assert await server.is_ready()
        assert num_descriptors() <= before


@on_uvloop
async def test_a_websocket_after_requests_on_the_same_connection_works():
    async with served() as server:
        reader, writer = await server.open()
        writer.write(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")
        await reader.readuntil(b"}")
        writer.write(handshake(QUIRE_V1))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        writer.close()
        assert await server.is_ready()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 300_000])
def test_a_text_frame_has_the_bytes_that_the_library_would_send(size: int):
    payload = b"x" * size
    assert text_frame(payload) == Frame(Opcode.TEXT, payload).serialize(mask=False)


def num_kept() -> int:
    """The bytes of messages that WebSockets of this process keep, open and lost ones."""
    found = gc.get_objects()
    # By their types: some objects of torch warn where they are asked for their class.
    protocols = [each for each in found if issubclass(type(each), WebSocketProtocol)]
    frames = [each for each in found if issubclass(type(each), Frame)]
    unread = sum(len(each.conn.reader.buffer) + sum(map(len, each.frames)) for each in protocols)
    return unread + sum(len(each.data) for each in frames)


@pytest.mark.parametrize(
    "sent",
    [frame(TEXT, b" " * MAX_BYTES), frame(TEXT, b" " * MAX_BYTES, fin=False), frame(TEXT, b" " * MAX_BYTES)[:-1]],
    ids=["whole", "a fragment", "without its end"],
)
async def test_a_lost_connection_keeps_nothing_of_a_message(sent: bytes):
    """Without a collection of cycles, which comes after many connections: each may have megabytes."""
    async with served(max_request_bytes=MAX_BYTES) as server:
        gc.collect()
        gc.disable()
        num_before = num_kept()  # by tests before this one
        try:
            _, writer = await open_websocket(server)
            writer.write(sent)
            await writer.drain()
            await until(lambda: num_kept() > num_before or sent[0] & 0x80)
            writer.transport.abort()
            await until(lambda: server.num_connections == 0)
            assert num_kept() == num_before
        finally:
            gc.enable()


@pytest.mark.parametrize("wire", [b"", frame(CONT, b"x"), close(struct.pack("!H", 1000))], ids=["cut", "bad", "closed"])
@on_uvloop
async def test_what_a_lost_websocket_had_is_freed_without_a_collection(wire: bytes):
    async with served() as server:
        assert await server.is_ready()
        gc.collect()
        with without_gc():
            before = num_alive()
            reader, writer = await open_websocket(server)
            writer.write(frame(TEXT, b'{"t":"hello","protocol":"quire.v1"}'))
            await read_frames(reader, TEXT)
            assert num_alive() == before + 4, "the one of HTTP has gone"
            if wire:
                writer.write(wire)
                await read_frames(reader)
            writer.transport.abort()
            await until(lambda: num_alive() == before)


@on_uvloop
async def test_what_a_rejected_handshake_had_is_freed_without_a_collection():
    async with served() as server:
        assert await server.is_ready()
        gc.collect()
        with without_gc():
            before = num_alive()
            (answer,) = await server.send(handshake(path=b"/nope"))
            assert answer.status == 404
            await until(lambda: num_alive() == before)


def num_alive() -> int:
    """The number of connections that are in memory, open or not, and of what belongs to each."""
    kinds = HttpProtocol, WebSocketProtocol, ServerProtocol, ChatSocket, ChatProtocol
    return sum(issubclass(type(each), kinds) for each in gc.get_objects())


async def test_an_open_connection_keeps_no_message_that_the_application_has():
    gc.collect()
    num_before = num_kept()
    async with served(max_request_bytes=MAX_BYTES) as server:
        reader, writer = await open_websocket(server)
        writer.write(
            frame(TEXT, b'{"t":"hello","protocol":"quire.v1"}')
            + frame(TEXT, b'{"t":"start","id":"a","x":"%b"}' % (b"x" * (MAX_BYTES // 2)))
        )
        async with asyncio.timeout(HANG_S):
            await reader.readuntil(b'"t":"error"')
        assert num_kept() <= num_before
        writer.transport.abort()
