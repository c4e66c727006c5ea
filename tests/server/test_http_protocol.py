"""Requests that the server rejects on the wire, over real sockets and the server's event loop."""

import asyncio
import gc
import logging
from dataclasses import replace

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.observe.log import ACCESS_LOGGER
from app.runtime.gc_tuning import without_gc
from app.server.http_protocol import HttpProtocol
from tests.api.serving import until
from tests.server.wire import (
    BODY,
    CHAT,
    HANG_S,
    HOST,
    IMPATIENT,
    LIMITS,
    READYZ,
    guard_of,
    handshake,
    num_descriptors,
    on_uvloop,
    parse_responses,
    post,
    read_all,
    served,
)

LAST = READYZ.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
GET = b"GET /readyz HTTP/1.1\r\n"
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
INVALID = (400, "http_invalid")
TOO_LARGE = (431, "request_too_large")
TIMEOUT = (408, "request_timeout")

# The rows of the security table: bytes that are sent in one piece, the status and the code of the response.
REJECTED = {
    "1 a header of 64 KiB": (GET + HOST + b"X: " + b"a" * 65536 + b"\r\n\r\n", *TOO_LARGE),
    "1 a header of 1 MiB": (GET + HOST + b"X: " + b"a" * 2**20 + b"\r\n\r\n", *TOO_LARGE),
    "1 headers that never end": (GET + b"X: y\r\n" * 3000, *TOO_LARGE),
    "2 65 headers": (GET + HOST + b"X: y\r\n" * 64 + b"\r\n", *TOO_LARGE),
    "2 5,000 headers": (GET + HOST + b"X: y\r\n" * 4999 + b"\r\n", *TOO_LARGE),
    "3 a URL over 8 KiB": (b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414, "request_too_large"),
    "3 a URL of 1 MiB": (b"GET /" + b"a" * 2**20 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414, "request_too_large"),
    "4 no Host": (GET + b"\r\n", *INVALID),
    "4 two Hosts": (GET + HOST + HOST + b"\r\n", *INVALID),
    "5 a foreign Host": (GET + b"Host: evil.example\r\nConnection: close\r\n\r\n", 421, "host_not_allowed"),
    "6 a Host with a path": (GET + b"Host: localhost/x\r\nConnection: close\r\n\r\n", *INVALID),
    "7 length and encoding": (post(LENGTH, CHUNKED, body=b"0\r\n\r\n"), *INVALID),
    "7 encoding and length": (post(CHUNKED, LENGTH, body=b"0\r\n\r\n"), *INVALID),
    "8 two lengths": (post(LENGTH, LENGTH, body=BODY), *INVALID),
    "8 two other lengths": (post(LENGTH, b"Content-Length: 5", body=BODY), *INVALID),
    "8 a negative length": (post(b"Content-Length: -5", body=BODY), *INVALID),
    "8 a length that is no number": (post(b"Content-Length: five", body=BODY), *INVALID),
    "8 a length over 2^31": (post(b"Content-Length: 2147483649", body=BODY), *INVALID),
    "8 a length of 20 digits": (post(b"Content-Length: 99999999999999999999", body=BODY), *INVALID),
    "9 gzip, chunked": (post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 501, "http_invalid"),
    "9 identity": (post(b"Transfer-Encoding: identity", body=BODY), 501, "http_invalid"),
    "10 a bad chunk size": (post(CHUNKED, body=b"zz\r\n"), *INVALID),
    "10 a chunk longer than its size": (post(CHUNKED, body=b"1\r\nabc\r\n0\r\n\r\n"), *INVALID),
    "10 an extension over 256 B": (post(CHUNKED, body=b"1;" + b"x" * 256 + b"\r\n{\r\n"), *INVALID),
    "11 a body over the limit": (post(b"Content-Length: 2097152"), 413, "request_too_large"),
    "12 the same, undeclared": (post(CHUNKED, body=b"200000\r\n" + b" " * 2**21), 413, "request_too_large"),
    "13 headers that stop": (GET + HOST, *TIMEOUT),
    "13 one byte": (b"G", *TIMEOUT),
    "14 a body that stops": (post(LENGTH, body=BODY[:-1]), *TIMEOUT),
    "14 a chunk that stops": (post(CHUNKED, body=b"5\r\nabc"), *TIMEOUT),
    "20 TRACE": (b"TRACE / HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n", 405, "method_not_allowed"),
    "20 CONNECT": (b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n", *INVALID),
    "20 PUT": (post(b"Connection: close").replace(b"POST", b"PUT"), 405, "method_not_allowed"),
    "20 a method in lower case": (LAST.replace(b"GET", b"get"), *INVALID),
    "20 an unknown method": (LAST.replace(b"GET", b"FETCH"), *INVALID),
    "27 the HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", *INVALID),
    "27 a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), *INVALID),
    "no HTTP at all": (b"EHLO mail.example\r\n\r\n", *INVALID),
    "lines without CR": (LAST.replace(b"\r\n", b"\n"), *INVALID),
    "a folded header": (GET + HOST + b" folded\r\n\r\n", *INVALID),
    "a space before the colon": (GET + b"Host : localhost\r\n\r\n", *INVALID),
    "NUL in a header": (GET + HOST + b"X: a\x00b\r\n\r\n", *INVALID),
    "a version that is none": (LAST.replace(b"HTTP/1.1", b"HTTP/9.9"), *INVALID),
    "an Upgrade with a body": (post(b"Connection: Upgrade", b"Upgrade: websocket", LENGTH, body=BODY), *INVALID),
    "82 a handshake over 8 KiB": (handshake(b"X: " + b"a" * 8192), *TOO_LARGE),
    "82 a handshake of a bad version": (handshake(version=b"12"), *INVALID),
    "82 a handshake without a key": (handshake().replace(b"Sec-WebSocket-Key", b"X-Key"), *INVALID),
    "82 a handshake that is a POST": (handshake().replace(b"GET", b"POST"), 405, "method_not_allowed"),
    "82 a handshake with a body": (handshake(b"Content-Length: 5"), *INVALID),
    "82 frames before the answer": (handshake() + b"\x81\x80abcd", *INVALID),
    "81 a foreign Origin": (handshake(b"Origin: http://evil.example"), 403, "permission_denied"),
}  # fmt: skip


@pytest.mark.parametrize("case", REJECTED)
@on_uvloop
async def test_a_hostile_request_is_rejected_in_json_logged_once_and_affects_no_other(case, caplog):
    wire, status, code = REJECTED[case]
    caplog.set_level(logging.INFO)
    limits = IMPATIENT if (status, code) == TIMEOUT else LIMITS
    async with served(limits, max_request_bytes=2**20) as server:
        (answer,) = await server.send(wire)
        assert (answer.status, answer.code, answer.headers["connection"]) == (status, code, "close")
        assert answer.headers.keys() >= {"date", "content-length"}
        (record,) = [record for record in caplog.records if record.name == ACCESS_LOGGER]
        assert (record.fields["status"], record.fields["reason"]) == (status, code)
        assert record.fields["client"] == "127.0.0.1"
        assert [record for record in caplog.records if record.levelno > logging.INFO or record.exc_info] == []
        assert await server.is_ready()
    assert server.engine.requests == []


@on_uvloop
async def test_15_a_silent_connection_is_closed_without_a_response(caplog):
    caplog.set_level(logging.INFO)
    async with served(IMPATIENT) as server:
        assert await server.send() == []
        assert await server.is_ready()
    assert caplog.records == []


@on_uvloop
async def test_14_a_body_below_the_minimum_rate_is_rejected():
    async with served(replace(IMPATIENT, body_timeout_s=HANG_S)) as server:
        reader, writer = await server.open()
        writer.write(post(LENGTH))

        async def trickle():
            for at in range(len(BODY)):
                writer.write(BODY[at : at + 1])
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        (answer,) = parse_responses(await read_all(reader))
        assert (answer.status, answer.code) == TIMEOUT
        assert not trickling.done()
        trickling.cancel()
        writer.close()
        assert await server.is_ready()


@on_uvloop
async def test_14_a_body_longer_than_its_timeout_is_rejected():
    async with served(replace(IMPATIENT, min_body_rate=1.0)) as server:
        reader, writer = await server.open()
        writer.write(post(b"Content-Length: 1000000"))

        async def send():
            while True:
                writer.write(b" " * 100)
                await asyncio.sleep(0.01)

        sending = asyncio.create_task(send())
        (answer,) = parse_responses(await read_all(reader))
        assert (answer.status, answer.code) == TIMEOUT
        sending.cancel()
        writer.close()
        assert await server.is_ready()


@on_uvloop
async def test_16_connections_over_the_limit_of_an_address_are_rejected_until_one_ends():
    async with served(LIMITS, max_connections_per_ip=3) as server:
        guard_of(server).is_exempt = lambda address: False
        first = await server.open()
        websocket = await server.open()
        websocket[1].write(handshake())
        assert b"101" in await websocket[0].readuntil(b"\r\n\r\n")
        third = await server.open()
        await until(lambda: guard_of(server).counts.total() == 3)
        for _ in range(5):
            (answer,) = await server.send()
            assert (answer.status, answer.code) == (429, "rate_limit_exceeded")
        third[1].close()
        await until(lambda: guard_of(server).counts.total() == 2)
        (answer,) = await server.send(LAST)
        assert answer.status == 200
        websocket[1].close()
        first[1].close()
        await until(lambda: guard_of(server).counts.total() == 0)


@on_uvloop
async def test_28_a_thousand_pipelined_requests_are_handled_one_at_a_time_in_order():
    running, most = 0, 0

    def count(app):
        async def counted(scope, receive, send):
            nonlocal running, most
            running += scope["type"] == "http"
            most = max(most, running)
            await app(scope, receive, send)
            running -= scope["type"] == "http"

        return counted

    async with served(wrap=count) as server:
        requests = [
            READYZ.replace(b"Host", b"X-Request-Id: %d\r\nHost" % number) for number in range(1000)
        ] + [LAST]  # fmt: skip
        answers = await server.send(b"".join(requests))
        assert [answer.headers["x-request-id"] for answer in answers[:-1]] == [str(number) for number in range(1000)]
        assert {answer.status for answer in answers} == {200}
        assert most == 1
        assert await server.is_ready()


@on_uvloop
async def test_28_bytes_pipelined_behind_a_slow_response_are_held_within_bounds():
    """The requests have bodies; the first response waits until the client could have sent 32 MiB."""
    held = asyncio.Event()

    def hold(app):
        async def held_back(scope, receive, send):
            if scope["type"] == "http":
                await held.wait()
            await app(scope, receive, send)

        return held_back

    async with served(wrap=hold) as server:
        _, writer = await server.open()
        writer.write(READYZ + post(LENGTH, body=BODY) * 200_000)
        await until(lambda: server.num_connections == 1)
        (protocol,) = server.server.server_state.connections
        await until(lambda: protocol.flow is not None and protocol.flow.read_paused)
        assert len(protocol._held) <= LIMITS.max_held_bytes + 512 * 1024
        assert not protocol.pipeline
        writer.transport.abort()
        held.set()
        await until(lambda: server.num_connections == 0)
        assert await server.is_ready()


@on_uvloop
async def test_28_a_websocket_behind_a_request_waits_for_the_response():
    async with served() as server:
        reader, writer = await server.open()
        writer.write(post(LENGTH, body=BODY) + handshake())
        async with asyncio.timeout(HANG_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert b"HTTP/1.1 101" in await reader.readuntil(b"Upgrade: websocket")
        writer.close()
        assert await server.is_ready()


@on_uvloop
async def test_a_rejected_request_behind_valid_ones_is_answered_in_order():
    async with served() as server:
        answers = await server.send(READYZ + post(LENGTH, body=BODY) + GET + b"\r\n" + READYZ)
        assert [answer.status for answer in answers] == [200, 200, 400]


@on_uvloop
async def test_a_chunked_body_may_have_extensions_and_trailers_which_are_not_headers():
    body = b"%x;a=b\r\n%s\r\n0\r\nX-Request-Id: trailer\r\n\r\n" % (len(BODY), BODY)
    async with served() as server:
        answers = await server.send(post(CHUNKED, body=body) + LAST)
        assert [answer.status for answer in answers] == [200, 200]
        assert answers[0].headers["x-request-id"] != "trailer"


@on_uvloop
async def test_a_client_that_expects_100_continue_gets_it():
    async with served() as server:
        reader, writer = await server.open()
        writer.write(post(LENGTH, b"Expect: 100-continue", b"Connection: close"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        (answer,) = parse_responses(await read_all(reader))
        assert answer.status == 200
        writer.close()


@on_uvloop
async def test_an_unsupported_upgrade_is_ignored(caplog):
    async with served() as server:
        (answer,) = await server.send(LAST.replace(b"close", b"close, Upgrade\r\nUpgrade: h2c"))
        assert answer.status == 200
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@on_uvloop
async def test_an_idle_connection_is_closed_after_the_keep_alive_timeout():
    async with served(IMPATIENT) as server:
        for protocol_timeout in (0.2, HANG_S):
            server.server.config.timeout_keep_alive = protocol_timeout
            reader, writer = await server.open()
            writer.write(READYZ)
            if protocol_timeout == HANG_S:
                for _ in range(3):
                    await reader.readuntil(b"}")
                    await asyncio.sleep(2 * IMPATIENT.head_timeout_s)  # no limit of the guard's applies
                    writer.write(READYZ)
                writer.write(LAST)
            assert parse_responses(await read_all(reader))[0].status == 200
            writer.close()


@on_uvloop
async def test_incomplete_headers_of_a_second_request_time_out():
    async with served(IMPATIENT) as server:
        answers = await server.send(READYZ + GET)
        assert [(answer.status, answer.code) for answer in answers] == [(200, None), TIMEOUT]


@on_uvloop
async def test_a_response_that_has_begun_is_not_affected_by_a_late_body():
    """The application responds without reading; the rest of the body is late, and then the connection is closed."""
    async with served(IMPATIENT) as server:
        server.server.config.timeout_keep_alive = 2 * HANG_S  # which would close it, too
        (answer,) = await server.send(f"POST {CHAT}/none HTTP/1.1\r\n".encode() + HOST + LENGTH + b"\r\n\r\n{")
        assert answer.status == 404
        assert await server.is_ready()


@on_uvloop
async def test_the_transport_has_the_watermarks_of_the_limits():
    async with served() as server:
        reader, writer = await server.open()
        writer.write(READYZ)
        await reader.readuntil(b"}")
        (protocol,) = server.server.server_state.connections
        assert protocol.transport.get_write_buffer_limits() == (LIMITS.write_low_bytes, LIMITS.write_high_bytes)
        writer.close()


@on_uvloop
async def test_hundreds_of_hostile_connections_leak_no_descriptors():
    quick = [wire for case, (wire, *_) in REJECTED.items() if not case.startswith(("13", "14", "81"))]
    async with served(replace(IMPATIENT, head_timeout_s=0.1)) as server:
        assert await server.is_ready()
        gc.collect()  # what other tests left open
        before = num_descriptors()
        for _ in range(200 // len(quick) + 1):
            await asyncio.gather(*(server.send(wire) for wire in quick), server.send(), server.send(b"GET / HT"))
        assert await server.is_ready()
        assert num_descriptors() <= before


@pytest.mark.parametrize(
    "wire",
    [
        LAST,
        READYZ + LAST,
        LAST.replace(b"HTTP/1.1", b"HTTP/1.0"),
        post(LENGTH, b"Connection: close", body=BODY),
        post(LENGTH, body=b"{") + BODY[1:],
        post(b"Content-Length: five", body=BODY),
    ],
    ids=["a request", "two requests", "HTTP/1.0", "a body", "a body and an open connection", "rejected"],
)
@on_uvloop
async def test_what_a_connection_had_is_freed_without_a_collection(wire: bytes):
    async with served() as server:
        assert await server.is_ready()  # what the first request leaves is there
        gc.collect()
        with without_gc():
            before = num_alive()
            reader, writer = await server.open()
            writer.write(wire)
            await reader.readuntil(b"HTTP/1.1")
            writer.close()
            await until(lambda: server.num_connections == 0 and num_alive() == before)


@on_uvloop
async def test_what_a_connection_had_that_was_cut_is_freed_without_a_collection():
    async with served() as server:
        assert await server.is_ready()
        gc.collect()
        with without_gc():
            before = num_alive()
            _, writer = await server.open()
            writer.write(post(LENGTH, body=BODY[:-1]))
            await until(lambda: num_alive() == before + 2)
            writer.transport.abort()
            await until(lambda: server.num_connections == 0 and num_alive() == before)


def num_alive() -> int:
    """The number of connections and requests that are in memory, open or not."""
    return sum(type(each) in (HttpProtocol, RequestResponseCycle) for each in gc.get_objects())
