"""The client, against a real server: text, several answers at once, cancels, and every way things end."""

import asyncio

import pytest

from app.client import ConnectionLost, ServerRefused, connect
from app.messages import FinishReason
from tests.api.serving import HANG_S, make_app, serving, until
from tests.fakes import FakeEngine, Script, text_of

MESSAGES = [{"role": "user", "content": "Hello"}]


async def test_text_and_figures_of_an_answer():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url, connect(url) as client:
        stream = await client.chat(MESSAGES, max_tokens=30)
        text = "".join([piece async for piece in stream])
    assert text == text_of(engine.requests[0].prompt_token_ids, 30)
    assert stream.finish_reasons == {0: FinishReason.LENGTH}
    assert stream.usage["completion_tokens"] == 30
    assert stream.timings["ttft_ms"] > 0
    assert (stream.model, stream.stream_id) == ("guide", engine.requests[0].id)
    assert client.welcome["heartbeat_ms"] == 15000


async def test_several_answers_at_once():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url, connect(url + "/") as client:
        streams = [await client.chat(MESSAGES, max_tokens=10 + i) for i in range(20)]
        texts = await asyncio.gather(*[stream.text() for stream in streams])
    prompt = engine.requests[0].prompt_token_ids
    assert texts == [text_of(prompt, 10 + i) for i in range(20)]


async def test_every_choice_has_its_text():
    engine = FakeEngine(Script(others=[[""], ["x"]]))
    async with serving(await make_app(engine)) as url, connect(url) as client:
        stream = await client.chat(MESSAGES, n=4, max_tokens=5)
        texts = await stream.texts()
        first = await (await client.chat(MESSAGES, n=4, max_tokens=5)).text()
    prompt = engine.requests[0].prompt_token_ids
    assert texts == [text_of(prompt, 5), "", "x", text_of(prompt, 5, 3)]
    assert first == texts[0]


async def test_events_are_numbered_and_carry_logprobs():
    async with serving(await make_app(FakeEngine())) as url, connect(url) as client:
        events = [event async for event in (await client.chat(MESSAGES, max_tokens=5, logprobs=True)).events()]
    assert sum(event.num_tokens for event in events) == sum(len(event.logprobs) for event in events) == 5
    assert events[0].first == 1


async def test_cancel_ends_the_answer_and_keeps_the_connection():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url, connect(url) as client:
        stream = await client.chat(MESSAGES)
        await until(lambda: engine.requests)
        engine.step(3)
        await stream.cancel()
        async with asyncio.timeout(HANG_S):
            text = await stream.text()
        await stream.cancel()
        engine.release()
        assert await (await client.chat(MESSAGES, max_tokens=2)).text()
    assert text_of(engine.requests[0].prompt_token_ids, 10).startswith(text)
    assert stream.finish_reasons == {0: "cancelled"}
    assert len(engine.aborted) == 1


async def test_leaving_a_streams_block_cancels_it():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url, connect(url) as client:
        async with await client.chat(MESSAGES):
            await until(lambda: engine.requests)
        await until(lambda: len(engine.aborted) == 1)


async def test_leaving_the_connection_aborts_what_is_open():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url:
        async with connect(url) as client:
            await client.chat(MESSAGES)
            await until(lambda: engine.requests)
        await until(lambda: len(engine.aborted) == 1)


async def test_a_refused_request_raises_what_the_server_says():
    async with serving(await make_app(FakeEngine())) as url, connect(url) as client:
        with pytest.raises(ServerRefused, match="model") as refused:
            await (await client.chat(MESSAGES, model="other")).text()
    assert (refused.value.code, refused.value.http_status, refused.value.param) == ("model_not_found", 404, "model")


async def test_a_failure_in_mid_answer_comes_after_its_text():
    async with serving(await make_app(FakeEngine(Script(fail_after=2)))) as url, connect(url) as client:
        stream = await client.chat(MESSAGES, max_tokens=9)
        num_tokens = 0
        with pytest.raises(ServerRefused):
            async for event in stream.events():
                num_tokens += event.num_tokens
    assert num_tokens == 2


async def test_a_lost_connection_ends_every_answer():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url, connect(url) as client:
        streams = [await client.chat(MESSAGES) for _ in range(2)]
        await until(lambda: len(engine.requests) == 2)
        await client.send({"t": 1})
        for stream in streams:
            with pytest.raises(ConnectionLost) as lost:
                await stream.text()
            assert lost.value.close_code == 4400
        with pytest.raises(ConnectionLost):
            await client.chat(MESSAGES)


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_a_wrong_key_is_told_by_its_close_code(key: str | None):
    async with serving(await make_app(api_key=["right"])) as url:
        with pytest.raises(ConnectionLost, match="4401") as lost:
            async with connect(url, key):
                pass
        assert lost.value.close_code == 4401
        async with connect(url.replace("http", "ws") + "/ws", "right") as client:
            assert client.welcome["t"] == "welcome"


async def test_a_refused_connection_raises_the_servers_error():
    async with serving(await make_app(allowed_hosts=["other.example"])) as url:
        with pytest.raises(ServerRefused) as refused:
            async with connect(url):
                pass
    assert (refused.value.code, refused.value.http_status) == ("host_not_allowed", 421)


async def test_a_server_without_our_errors_is_refused_by_its_status():
    async def teapot(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 418 Teapot\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(teapot, "127.0.0.1", 0)
    async with server:
        with pytest.raises(ServerRefused, match="418"):
            async with connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"):
                pass
