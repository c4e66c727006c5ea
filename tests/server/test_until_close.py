"""Clients of HTTP/1.0: no chunks, and the end of the connection ends a body without a length."""

import json

import pytest

from tests.fakes import FakeEngine, Script
from tests.server.wire import BODY, HOST, READYZ, handshake, on_uvloop, parse_responses, post, read_all, served

STREAM = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "stream": True}).encode()
LONG = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "n": 3, "return_token_ids": True}).encode()


def old(request: bytes) -> bytes:
    """The same request of a client of HTTP/1.0."""
    return request.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1)


def sized(body: bytes, *headers: bytes) -> bytes:
    return post(b"Content-Length: %d" % len(body), *headers, body=body)


async def exchanged(server, request: bytes) -> tuple[bytes, bytes]:
    """The head and the body of a response, read to the end of the connection."""
    reader, writer = await server.open()
    writer.write(request)
    head, _, body = (await read_all(reader)).partition(b"\r\n\r\n")
    writer.close()
    return head.lower(), body


@pytest.mark.parametrize("accept", [b"*/*", b"application/x-ndjson"])
@on_uvloop
async def test_a_stream_is_not_chunked(accept):
    async with served(engine=FakeEngine(Script(answer=["Hel", "lo"]))) as server:
        head, body = await exchanged(server, old(sized(STREAM, b"Accept: " + accept)))
        chunked = await exchanged(server, sized(STREAM, b"Accept: " + accept, b"Connection: close"))
        assert b"transfer-encoding" not in head and b"content-length" not in head
        assert b"connection: close" in head.split(b"\r\n")
        lines = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line]
        texts = [json.loads(line)["choices"][0]["delta"].get("content") for line in lines if b'"delta"' in line]
        assert "".join(filter(None, texts)) == "Hello"
        assert all(line.startswith((b"{", b"[DONE]")) for line in lines), "no sizes of chunks"
        assert b"transfer-encoding: chunked" in chunked[0], "others are, as before"
        assert await server.is_ready()


@on_uvloop
async def test_answers_with_a_length_keep_it():
    async with served() as server:
        for request in (READYZ, sized(BODY), b"GET /nope HTTP/1.1\r\n" + HOST + b"\r\n", sized(b"{")):
            head, body = await exchanged(server, old(request))
            (answer,) = parse_responses(head + b"\r\n\r\n" + body)
            assert "transfer-encoding" not in answer.headers and answer.headers["connection"] == "close"
            assert len(answer.body) == int(answer.headers["content-length"])
            assert json.loads(answer.body)


@on_uvloop
async def test_an_answer_that_is_written_in_pieces_is_whole():
    async with served(engine=FakeEngine(Script(answer=["Hel", "lo"]))) as server:
        head, body = await exchanged(server, old(sized(LONG)))
        assert head.startswith(b"http/1.1 200") and b"transfer-encoding" not in head
        assert len(json.loads(body)["choices"]) == 3


@on_uvloop
async def test_head_has_no_body():
    async with served() as server:
        head, body = await exchanged(server, old(READYZ.replace(b"GET", b"HEAD")))
        assert b"transfer-encoding" not in head and body == b""


@on_uvloop
async def test_a_connection_is_not_kept():
    """`Connection: keep-alive` of HTTP/1.0 asks for it; the answer says no."""
    keep = old(READYZ).replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")
    async with served() as server:
        head, body = await exchanged(server, keep + keep)
        assert head.count(b"http/1.1 ") == 1 and b"connection: close" in head and b"HTTP/1.1" not in body


@on_uvloop
async def test_there_is_no_100_continue():
    async with served() as server:
        head, _ = await exchanged(server, old(sized(BODY, b"Expect: 100-continue")))
        assert head.startswith(b"http/1.1 200")


@on_uvloop
async def test_a_failure_of_the_stream_is_its_last_line():
    async with served(engine=FakeEngine(Script(answer=["Hel", "lo"], fail_after=1))) as server:
        head, body = await exchanged(server, old(sized(STREAM)))
        assert b"transfer-encoding" not in head and b'"error"' in body.rstrip().split(b"\n\n")[-1]


@on_uvloop
async def test_a_websocket_still_opens():
    async with served() as server:
        reader, writer = await server.open()
        writer.write(handshake())
        assert b"101" in await reader.readuntil(b"\r\n\r\n")
        writer.close()
