"""The number of paused streams is bounded per connection and per account, on HTTP and on quire.v1."""

import httpx
import pytest

from app.config.settings import Config, make_config
from app.streaming.chat_actions import ChatLimits
from tests.api.chat_client import HELLO, ChatClient, body, connect_socket, open_chat
from tests.api.serving import SLOW, connected, make_app, serving, until
from tests.fakes import FakeEngine

LONG = 1900


def num_paused(engine: FakeEngine) -> int:
    return engine.port.num_paused


async def start_paused(chat: ChatClient, *names: str) -> None:
    """Start streams without credit, and wait until all are paused."""
    for name in names:
        await chat.send(t="start", id=name, request=body(max_tokens=LONG), credit=0)
    await chat.receive_until("paused", count=len(names))


async def test_too_many_paused_streams_of_a_connection_are_an_error_and_the_connection_stays():
    engine = FakeEngine()
    async with open_chat(engine, limits=ChatLimits(max_paused=2)) as chat:
        await start_paused(chat, "a", "b")
        await chat.start("c", max_tokens=1)
        (frame,) = await chat.receive_until("error")
        assert (frame["id"], frame["code"]) == ("c", "rate_limit_exceeded")
        assert "2 streams of this connection are paused" in frame["message"]
        await chat.send(t="cancel", id="a")
        await chat.receive_until("done")
        await chat.start("c", max_tokens=1)
        await chat.receive_until("done")
    assert len(engine.requests) == 3


async def test_the_bound_of_paused_streams_per_connection_is_a_setting():
    async with open_chat(FakeEngine(), max_paused_per_connection=1) as chat:
        await start_paused(chat, "a")
        await chat.start("b")
        assert (await chat.receive_until("error"))[-1]["code"] == "rate_limit_exceeded"


def test_the_default_bounds_are_32_and_64():
    server = Config().server
    assert (server.max_paused_per_connection, server.max_paused_per_account) == (32, 64)


@pytest.mark.parametrize("keys", [(), ("one", "two")])
async def test_an_account_with_too_many_paused_streams_gets_429_on_both_transports(keys):
    config = make_config({"max_paused_per_account": 2, "api_key": keys})
    engine = FakeEngine(config=config)
    app = await make_app(engine, config)
    key = {"x-api-key": "one"} if keys else {}
    async with serving(app) as url, connect_socket(url, additional_headers=key) as socket:
        chat = ChatClient(socket)
        await chat.send(**HELLO)
        await chat.receive()
        await start_paused(chat, "a", "b")
        await chat.start("c")
        frame = (await chat.receive_until("error"))[-1]
        assert (frame["id"], frame["code"]) == ("c", "rate_limit_exceeded")
        assert "2 streams of this account are paused" in frame["message"]
        async with connected(url) as connection:
            await connection.post("/v1/chat/completions", body(max_tokens=1), **key)
            assert (await connection.head())[0] == 429
        elsewhere = httpx.ASGITransport(app, client=("192.0.2.9", 1))
        async with httpx.AsyncClient(transport=elsewhere, base_url="http://localhost") as client:
            other = {"x-api-key": "two"} if keys else {}
            answer = await client.post("/v1/chat/completions", json=body(max_tokens=1), headers=other)
            assert answer.status_code == 200
        await chat.send(t="cancel", id="a")
        await chat.receive_until("done")
        await chat.start("d", max_tokens=1)
        await chat.receive_until("done")


async def test_an_unread_http_stream_counts_as_paused():
    config = make_config({"max_paused_per_account": 1})
    engine = FakeEngine(config=config)
    app = await make_app(engine, config, SLOW)
    async with serving(app) as url, connected(url, receive_buffer=4096) as unread, connected(url) as connection:
        await unread.post("/v1/chat/completions", {**body(), "stream": True, "max_tokens": LONG})
        await until(lambda: num_paused(engine) == 1)
        await connection.post("/v1/chat/completions", body(max_tokens=1))
        assert (await connection.head())[0] == 429
