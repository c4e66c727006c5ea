"""How many streams may wait for their readers: of a connection and of an account, on HTTP and on quire.v1."""

import httpx
import pytest

from app.config.settings import Config, make_config
from app.streaming.chat_protocol import ChatLimits
from tests.api.serving import SLOW, connected, make_app, serving, until
from tests.api.talk import HELLO, Talk, body, opened, talking
from tests.fakes import FakeEngine

LONG = 1900


def num_paused(engine: FakeEngine) -> int:
    return sum(work.is_paused for work in engine.port._works.values())


async def fall_asleep(talk: Talk, *names: str) -> None:
    """Start streams that are never given credit, until all are paused."""
    for name in names:
        await talk.say(t="start", id=name, request=body(max_tokens=LONG), credit=0)
    await talk.hear_until("paused", count=len(names))


async def test_a_connection_with_many_paused_streams_gets_an_error_and_stays():
    engine = FakeEngine()
    async with talking(engine, limits=ChatLimits(max_paused=2)) as talk:
        await fall_asleep(talk, "a", "b")
        await talk.start("c", max_tokens=1)
        (frame,) = await talk.hear_until("error")
        assert (frame["id"], frame["code"]) == ("c", "rate_limit_exceeded")
        assert "2 streams of this connection are paused" in frame["message"]
        await talk.say(t="cancel", id="a")
        await talk.hear_until("done")
        await talk.start("c", max_tokens=1)
        await talk.hear_until("done")
    assert len(engine.requests) == 3


async def test_the_bound_of_a_connection_is_a_setting():
    async with talking(FakeEngine(), max_paused_per_connection=1) as talk:
        await fall_asleep(talk, "a")
        await talk.start("b")
        assert (await talk.hear_until("error"))[-1]["code"] == "rate_limit_exceeded"


def test_the_defaults_are_those_of_the_docs():
    server = Config().server
    assert (server.max_paused_per_connection, server.max_paused_per_account) == (32, 64)


@pytest.mark.parametrize("keys", [(), ("one", "two")])
async def test_an_account_with_many_paused_streams_is_answered_429_on_both_transports_and_others_are_not(keys):
    config = make_config({"max_paused_per_account": 2, "api_key": keys})
    engine = FakeEngine(config=config)
    app = await make_app(engine, config)
    key = {"x-api-key": "one"} if keys else {}
    async with serving(app) as url, opened(url, additional_headers=key) as socket:
        talk = Talk(socket)
        await talk.say(**HELLO)
        await talk.hear()
        await fall_asleep(talk, "a", "b")
        await talk.start("c")
        frame = (await talk.hear_until("error"))[-1]
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
        await talk.say(t="cancel", id="a")
        await talk.hear_until("done")
        await talk.start("d", max_tokens=1)
        await talk.hear_until("done")


async def test_a_stream_over_http_that_nobody_reads_counts():
    config = make_config({"max_paused_per_account": 1})
    engine = FakeEngine(config=config)
    app = await make_app(engine, config, SLOW)
    async with serving(app) as url, connected(url, receive_buffer=4096) as unread, connected(url) as connection:
        await unread.post("/v1/chat/completions", {**body(), "stream": True, "max_tokens": LONG})
        await until(lambda: num_paused(engine) == 1)
        await connection.post("/v1/chat/completions", body(max_tokens=1))
        assert (await connection.head())[0] == 429
