"""The client over real sockets: whole answers, none, cut ones, slow ones; and the model's name."""

import asyncio
import socket
from typing import Any

import pytest

from app.contract.errors import CannotStart, ConfigurationError
from app.loadgen.answer import Answer
from app.loadgen.load import Request
from app.loadgen.load_client import Client
from app.loadgen.target import find_target
from tests.api.serving import until
from tests.loadgen.made import FINISH, HANG_S, chunked, http, refusal, serving, stream, text


async def ask(url: str, cancel_after: int | None = None, timeout_s: float = HANG_S) -> Answer:
    target, answer = find_target(url, "k-1"), Answer(0.0, 0.0, 0.0)
    request = Request(0.0, target.post("/v1/completions", b"{}"), cancel_after)
    await Client(target, timeout_s).ask(request, answer)
    return answer


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def test_a_stream_is_read_to_its_end():
    async with serving(stream(4)) as server:
        answer = await ask(server.url)
    assert (answer.status, len(answer.times), answer.prompt_tokens, answer.output_tokens) == ("completed", 4, 5, 4)
    assert answer.connected is not None
    assert answer.sent < answer.connected < answer.times[0] <= answer.ended
    assert "authorization: Bearer k-1" in server.heads[0]


async def test_nobody_there_is_a_failure():
    answer = await ask(f"http://127.0.0.1:{free_port()}")
    assert (answer.status, answer.error, answer.connected) == ("failed", "no connection", None)
    assert answer.message == "Connection refused"


async def test_a_server_without_tls_is_a_failure_in_its_own_words():
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        answer = await ask(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert answer.error == "no connection"
    assert "SSL" in answer.message


async def test_a_refusal_is_a_failure():
    async with serving(refusal()) as server:
        assert (await ask(server.url)).error == "503 overloaded"


async def test_a_stream_that_is_cut_is_a_failure_after_its_chunks():
    async with serving(chunked(text(), text(), is_whole=False)) as server:
        answer = await ask(server.url)
    assert (answer.status, answer.error, len(answer.times)) == ("failed", "cut", 2)


async def test_a_reset_is_a_cut():
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        peer = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with RST
        writer.transport.abort()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    async with server:
        answer = await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert (answer.error, answer.message) == ("cut", "Connection reset by peer")


async def test_an_answer_that_takes_too_long_is_given_up():
    async with serving(chunked(text(), is_whole=False)) as server:
        server.hold()
        answer = await ask(server.url, timeout_s=0.05)
        assert (answer.status, answer.error, len(answer.times)) == ("failed", "timed out", 1)
        await until(lambda: server.lost == [0])


async def test_hanging_up_closes_the_connection_while_the_answer_goes_on():
    async with serving(chunked(text(), text(), is_whole=False)) as server:
        server.hold()
        answer = await ask(server.url, cancel_after=2)
        assert (answer.status, len(answer.times)) == ("cancelled", 2)
        await until(lambda: server.lost == [0])


async def test_the_first_model_is_asked_for_with_the_key():
    async with serving(b"") as server:
        assert await Client(find_target(server.url, "k-1"), HANG_S).model() == "fake"
    assert server.heads[0].startswith("GET /v1/models HTTP/1.1\r\n")
    assert "authorization: Bearer k-1" in server.heads[0]


async def model_of(models: bytes) -> Any:
    async with serving(b"", models) as server:
        return await Client(find_target(server.url), HANG_S).model()


async def test_the_models_may_come_in_chunks():
    assert await model_of(chunked(b'{"data": [{', b'"id": "m"}]}')) == "m"


@pytest.mark.parametrize(
    "models", [http(b'{"data": []}'), http(b"[]"), http(b"hello"), refusal("401 Unauthorized", "no"), b"x"]
)
async def test_a_server_that_names_no_model_is_refused(models):
    with pytest.raises(ConfigurationError, match="give --model"):
        await model_of(models)


async def test_a_server_without_time_cannot_be_measured_now():
    with pytest.raises(CannotStart, match=r"503 overloaded: Too many requests\."):
        await model_of(refusal())


async def test_a_server_that_is_not_there_cannot_be_measured_now():
    with pytest.raises(CannotStart, match=r"cannot talk with http.*: Connection refused"):
        await Client(find_target(f"http://127.0.0.1:{free_port()}"), HANG_S).model()


async def test_an_answer_without_a_length_ends_with_the_connection():
    async with serving(b"HTTP/1.1 200 OK\r\n\r\n" + text() + FINISH) as server:
        assert (await ask(server.url)).status == "completed"


async def test_a_whole_answer_is_its_status_and_body():
    async with serving(http(b'{"text": "a"}'), chunked(b"pa", b"ge")) as server:
        client = Client(find_target(server.url), HANG_S)
        posted, page = await client.post("/v1/completions", {"n": 1}), await client.get("/metrics")
    assert (posted.status, posted.content) == (200, b'{"text": "a"}')
    assert (page.status, page.content) == (200, b"page")
    assert server.bodies == [{"n": 1}] and "GET /metrics " in server.heads[1]


async def test_a_refused_whole_answer_has_its_status():
    async with serving(refusal()) as server:
        assert (await Client(find_target(server.url), HANG_S).post("/v1/completions", {})).status == 503


async def test_a_whole_answer_that_takes_too_long_is_given_up():
    async with serving(chunked(text(), is_whole=False)) as server:
        server.hold()
        with pytest.raises(TimeoutError):
            await Client(find_target(server.url), 0.05).post("/v1/completions", {})
        await until(lambda: server.lost == [0])
