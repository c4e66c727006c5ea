"""A request, valid or hostile, has the same response for any split into pieces."""

import asyncio
import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from uvicorn.server import ServerState

from app.api.http.error_response import handle_quire_error
from app.config.settings import Config
from app.contract.errors import QuireError
from app.server.run import uvicorn_config
from tests.cases import examples
from tests.server.wire import BODY, HOST, LIMITS, handshake, parse_responses

TURNS = 30  # of the loop: more than any response below takes
ECHO = b"POST /echo?q=1 HTTP/1.1\r\n" + HOST
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"  # as Java does
LAST = b"GET /echo HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"

# The bytes that are sent, and the statuses of the responses.
REQUESTS = {
    "no body": (LAST, [200]),
    "a body": (ECHO + LENGTH + BODY, [200]),
    "a chunked body": (ECHO + CHUNKED + b"5;a=b\r\n\r\n\r\n\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n", [200]),
    "blank lines first": (b"\r\n\r\n\r\n" + LAST, [200]),
    "three in a row": (ECHO + LENGTH + BODY + ECHO + CHUNKED + b"1\r\nx\r\n0\r\n\r\n" + LAST, [200, 200, 200]),
    "an upgrade that is none": (LAST.replace(b"close", b"close, upgrade\r\nUpgrade: h2c"), [200]),
    "a body and an upgrade that is none": (
        ECHO
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
        + LENGTH
        + BODY
        + LAST,
        [200, 200],
    ),
    "a chunked body and an upgrade that is none": (
        ECHO + b"Connection: upgrade\r\nUPGRADE: h2c\r\n" + CHUNKED + b"1\r\nx\r\n0\r\n\r\n" + LAST,
        [200, 200],
    ),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", [400]),
    "two Hosts, after a good one": (ECHO + LENGTH + BODY + b"GET / HTTP/1.1\r\n" + HOST * 2 + b"\r\n", [200, 400]),
    "length and encoding": (ECHO + b"Content-Length: 3\r\n" + CHUNKED, [400]),
    "gzip": (ECHO + b"Transfer-Encoding: gzip\r\n\r\n", [501]),
    "a bad chunk": (ECHO + CHUNKED + b"3\r\nabc\r\nx\r\n", [400]),
    "a chunk without its end": (ECHO + CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n", [400]),
    "an extension": (ECHO + CHUNKED + b"3;" + b"x" * 300 + b"\r\nabc\r\n0\r\n\r\n", [400]),
    "65 headers": (b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 64 + b"\r\n", [431]),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [400]),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    "a bad method": (b"get / HTTP/1.1\r\n", [400]),
    "a target that is no path": (b"CONNECT a:80 HTTP/1.1\r\n" + HOST + b"\r\n", [400]),
    "a WebSocket of a bad version": (handshake(version=b"7"), [400]),
}
LARGE = {
    "a head of 16 KiB and more": (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 20000 + b"\r\n\r\n", [431]),
    "a URL of 8 KiB and more": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", [414]),
    "a handshake of 8 KiB and more": (handshake(b"X: " + b"a" * 9000), [431]),
}


class FakeTransport(asyncio.Transport):
    """Keeps the written bytes."""

    def __init__(self):
        super().__init__({"peername": ["192.0.2.1", 5], "sockname": ["192.0.2.2", 80]})
        self.written = bytearray()
        self.is_closed = False

    def set_write_buffer_limits(self, high=None, low=None):
        """This transport has no buffer."""

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        assert not self.is_closed
        self.written += data

    def write_eof(self):
        self.is_closed = True

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed

    def pause_reading(self):
        """All pieces are delivered in any case."""

    def resume_reading(self):
        """Do nothing."""

    def set_protocol(self, protocol):
        self.protocol = protocol


async def echo(request: Request) -> JSONResponse:
    """Return the request as it was parsed."""
    body = await request.body()
    names = [name for name, _ in request.scope["headers"]]
    return JSONResponse([request.method, request.url.path, request.url.query, body.decode(), str(names)])


APP = Starlette(
    routes=[Route("/echo", echo, methods=["GET", "POST"])], exception_handlers={QuireError: handle_quire_error}
)


async def exchange(pieces: list[bytes], has_pauses: bool) -> tuple[list[object], bool]:
    """Feed pieces to a connection; return its responses and whether it was closed."""
    config = uvicorn_config(APP, Config(), LIMITS)
    config.load()
    protocol = config.http_protocol_class(config=config, server_state=ServerState(), app_state={})
    transport = FakeTransport()
    transport.protocol = protocol
    protocol.connection_made(transport)
    for piece in pieces:
        if not transport.is_closed:
            transport.protocol.data_received(piece)
        if has_pauses:
            await asyncio.sleep(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    transport.protocol.connection_lost(None)
    await asyncio.sleep(0)
    found = parse_responses(bytes(transport.written))
    return [(answer.status, answer.code, answer.status < 400 and answer.body) for answer in found], transport.is_closed


@functools.cache
def in_one_piece(wire: bytes) -> tuple[list[object], bool]:
    """The responses to bytes that are sent in one piece."""
    return asyncio.run(exchange([wire], has_pauses=False))


@pytest.mark.parametrize("has_pauses", [False, True])
@pytest.mark.parametrize("case", REQUESTS)
async def test_a_split_at_every_byte_does_not_change_the_responses(case, has_pauses):
    wire, statuses = REQUESTS[case]
    expected = await exchange([wire], has_pauses=False)
    assert [status for status, *_ in expected[0]] == statuses
    for at in range(1, len(wire)):
        assert await exchange([wire[:at], wire[at:]], has_pauses) == expected
    assert await exchange([wire[at : at + 1] for at in range(len(wire))], has_pauses) == expected


@settings(max_examples=examples(150))
@given(st.data(), st.sampled_from(sorted(REQUESTS | LARGE)), st.booleans())
def test_any_split_does_not_change_the_responses(data, case, has_pauses):
    wire, statuses = (REQUESTS | LARGE)[case]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=12)))
    pieces = [wire[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    expected = in_one_piece(wire)
    assert [status for status, *_ in expected[0]] == statuses
    assert asyncio.run(exchange(pieces, has_pauses)) == expected
