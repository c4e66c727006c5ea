"""The client over real sockets: complete, missing, truncated and slow answers."""

import asyncio
import socket

import pytest

from app.loadgen.answer import Answer
from app.loadgen.load import Request
from app.loadgen.load_client import Client
from app.loadgen.target import find_target
from tests.api.serving import until
from tests.loadgen.fakes import FINISH, HANG_S, chunked, free_port, rejection, serving, stream, text


async def ask(
    url: str, cancel_after: int | None = None, timeout_s: float = HANG_S, answer: Answer | None = None
) -> Answer:
    target, answer = find_target(url, "k-1"), answer or Answer(0.0, 0.0, 0.0)
    request = Request(0.0, target.post("/v1/completions", b"{}"), cancel_after)
    await Client(target, timeout_s).send(request, answer)
    return answer


async def test_a_stream_is_read_to_its_end():
    async with serving(stream(4)) as server:
        answer = await ask(server.url)
    assert (answer.status, len(answer.times), answer.prompt_tokens, answer.output_tokens) == ("completed", 4, 5, 4)
    assert answer.connected is not None
    assert answer.sent < answer.connected < answer.times[0] <= answer.ended
    assert "authorization: Bearer k-1" in server.heads[0]


async def test_a_rejected_connection_is_a_failure():
    with free_port() as port:
        answer = await ask(f"http://127.0.0.1:{port}")
    assert (answer.status, answer.error, answer.connected) == ("failed", "no connection", None)
    assert answer.message == "Connection refused"


async def test_a_server_without_tls_is_a_failure_with_the_tls_error():
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        answer = await ask(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert answer.error == "no connection"
    assert "SSL" in answer.message


async def test_a_rejection_is_a_failure():
    async with serving(rejection()) as server:
        assert (await ask(server.url)).error == "503 overloaded"


async def test_a_truncated_stream_is_a_failure_with_its_chunks():
    async with serving(chunked(text(), text(), is_complete=False)) as server:
        answer = await ask(server.url)
    assert (answer.status, answer.error, len(answer.times)) == ("failed", "cut", 2)


async def test_a_connection_reset_is_a_failure():
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        peer = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with RST
        writer.transport.abort()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    async with server:
        answer = await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert (answer.error, answer.message) == ("cut", "Connection reset by peer")


async def test_an_answer_that_exceeds_the_timeout_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    loop, answer = asyncio.get_running_loop(), Answer(0.0, 0.0, 0.0)
    clock = loop.time
    async with serving(chunked(text(), is_complete=False)) as server:
        server.hold()
        asking = asyncio.create_task(ask(server.url, timeout_s=HANG_S / 2, answer=answer))
        await until(lambda: answer.times)
        monkeypatch.setattr(loop, "time", lambda: clock() + HANG_S / 2)
        await asking
        assert (answer.status, answer.error, len(answer.times)) == ("failed", "timed out", 1)
        await until(lambda: server.lost == [0])


async def test_a_cancel_closes_the_connection_during_the_answer():
    async with serving(chunked(text(), text(), is_complete=False)) as server:
        server.hold()
        answer = await ask(server.url, cancel_after=2)
        assert (answer.status, len(answer.times)) == ("cancelled", 2)
        await until(lambda: server.lost == [0])


async def test_an_answer_without_a_length_ends_with_the_connection():
    async with serving(b"HTTP/1.1 200 OK\r\n\r\n" + text() + FINISH) as server:
        assert (await ask(server.url)).status == "completed"
