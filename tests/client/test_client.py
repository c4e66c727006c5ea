"""The client with a server: text, concurrent streams, cancels, and every way a stream ends."""

import asyncio

import pytest

from app.client.client import connect
from app.client.opening import ConnectionLost, ServerRefused
from app.contract.engine_status import EngineState
from app.contract.events import ChoiceEnd, FinishReason
from app.contract.requests import Pause, Resume
from tests.api.serving import HANG_S, make_app, serving, until
from tests.fakes import FakeEngine, Script, text_of

MESSAGES = [{"role": "user", "content": "Hello"}]


async def test_a_stream_has_text_usage_and_timings():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url, connect(url) as client:
        stream = await client.chat(MESSAGES, max_tokens=30)
        text = "".join([piece async for piece in stream])
    assert text == text_of(engine.requests[0].prompt_token_ids, 30)
    assert stream.ends == {0: ChoiceEnd(FinishReason.LENGTH)}
    assert stream.usage["completion_tokens"] == 30
    assert stream.timings["ttft_ms"] > 0
    assert (stream.model, stream.stream_id) == ("guide", engine.requests[0].id)
    assert client.welcome["heartbeat_ms"] == 15000


async def test_concurrent_streams_have_their_own_texts():
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


async def test_events_have_numbers_and_logprobs():
    async with serving(await make_app(FakeEngine())) as url, connect(url) as client:
        events = [event async for event in (await client.chat(MESSAGES, max_tokens=5, logprobs=True)).events()]
    assert sum(event.num_tokens for event in events) == sum(len(event.logprobs) for event in events) == 5
    assert events[0].first == 1


async def test_cancel_ends_the_stream_and_keeps_the_connection():
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
    assert stream.ends == {0: ChoiceEnd(FinishReason.CANCELLED)}
    assert len(engine.aborted) == 1


async def test_a_stream_of_many_windows_is_complete():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url, connect(url) as client, asyncio.timeout(HANG_S):
        stream = await client.chat(MESSAGES, max_tokens=2000)
        numbers, pieces = [], []
        async for event in stream.events():
            numbers += range(event.first, event.first + event.num_tokens)
            pieces.append(event.text)
    assert "".join(pieces) == text_of(engine.requests[0].prompt_token_ids, 2000)
    assert numbers == list(range(1, 2001))
    assert stream.ends == {0: ChoiceEnd(FinishReason.LENGTH)}


async def test_every_choice_of_a_long_stream_is_complete():
    engine = FakeEngine(Script(others=[["x"] * 300]))
    async with serving(await make_app(engine)) as url, connect(url) as client, asyncio.timeout(HANG_S):
        texts = await (await client.chat(MESSAGES, n=3, max_tokens=600)).texts()
    prompt = engine.requests[0].prompt_token_ids
    assert texts == [text_of(prompt, 600), "x" * 300, text_of(prompt, 600, 2)]


async def test_an_unread_stream_pauses_and_is_complete_when_read():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url, connect(url) as client, asyncio.timeout(HANG_S):
        stream = await client.chat(MESSAGES, max_tokens=1900)
        reading = aiter(stream)
        before = await anext(reading)
        await until(lambda: stream.is_paused)
        assert [type(command) for command in engine.port.posted[1:]] == [Pause]
        assert engine.port.num_open == 1
        other = await client.chat(MESSAGES, max_tokens=300)
        assert await other.text() == text_of(engine.requests[1].prompt_token_ids, 300)
        assert stream.is_paused
        after = "".join([piece async for piece in reading])
    assert before + after == text_of(engine.requests[0].prompt_token_ids, 1900)
    assert any(isinstance(command, Resume) for command in engine.port.posted)
    assert not stream.is_paused


async def test_an_unread_stream_buffers_one_window():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url, connect(url) as client, asyncio.timeout(HANG_S):
        stream = await client.chat(MESSAGES, max_tokens=1900)
        await until(lambda: stream.is_paused)
        await stream.cancel()
        received = await stream.text()
    window = client.welcome["limits"]["window"]
    assert received == text_of(engine.requests[0].prompt_token_ids, window)
    assert stream.ends == {0: ChoiceEnd(FinishReason.CANCELLED)}


async def test_a_second_iteration_continues_where_the_first_stopped():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url, connect(url) as client, asyncio.timeout(HANG_S):
        stream = await client.chat(MESSAGES, max_tokens=700)
        text = ""
        async for piece in stream:
            text += piece
            if len(text) > 100:
                break
        text += await stream.text()
    assert text == text_of(engine.requests[0].prompt_token_ids, 700)


async def test_a_client_that_never_reads_is_disconnected_with_the_reason():
    engine = FakeEngine()
    async with (
        serving(await make_app(engine, stall_timeout=0.2)) as url,
        connect(url) as client,
        asyncio.timeout(HANG_S),
    ):
        stream = await client.chat(MESSAGES, max_tokens=1900)
        await until(lambda: engine.aborted)
        with pytest.raises(ConnectionLost, match="did not read an answer within") as lost:
            await stream.text()
    assert lost.value.close_code == 4499


async def test_a_draining_server_finishes_a_stream_and_rejects_the_next():
    engine = FakeEngine(held=True)
    app = await make_app(engine)
    async with serving(app) as url, connect(url) as client, asyncio.timeout(HANG_S):
        stream = await client.chat(MESSAGES, max_tokens=3)
        await until(lambda: engine.requests)
        drain = asyncio.create_task(app.state.context.drain.run(HANG_S))
        await until(lambda: client.is_draining)
        assert engine.health().state is EngineState.DRAINING
        rejected = await client.chat(MESSAGES)
        with pytest.raises(ServerRefused) as error:
            await rejected.text()
        assert error.value.code == "draining"
        engine.release()
        assert await stream.text() == text_of(engine.requests[0].prompt_token_ids, 3)
        with pytest.raises(ConnectionLost, match="has shut down") as lost:
            while True:
                await client.send({"t": "ping"})
                await asyncio.sleep(0.01)
        assert lost.value.close_code == 1012
        await drain


async def test_leaving_the_block_of_a_stream_cancels_it():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url, connect(url) as client:
        async with await client.chat(MESSAGES):
            await until(lambda: engine.requests)
        await until(lambda: len(engine.aborted) == 1)


async def test_closing_the_connection_aborts_open_streams():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url:
        async with connect(url) as client:
            await client.chat(MESSAGES)
            await until(lambda: engine.requests)
        await until(lambda: len(engine.aborted) == 1)


async def test_a_rejected_request_raises_the_servers_error():
    async with serving(await make_app(FakeEngine())) as url, connect(url) as client:
        with pytest.raises(ServerRefused, match="model") as rejected:
            await (await client.chat(MESSAGES, model="other")).text()
    assert (rejected.value.code, rejected.value.http_status, rejected.value.param) == ("model_not_found", 404, "model")


async def test_a_failure_during_a_stream_is_raised_after_its_text():
    async with serving(await make_app(FakeEngine(Script(fail_after=2)))) as url, connect(url) as client:
        stream = await client.chat(MESSAGES, max_tokens=9)
        num_tokens = 0
        with pytest.raises(ServerRefused):
            async for event in stream.events():
                num_tokens += event.num_tokens
    assert num_tokens == 2


async def test_a_lost_connection_ends_every_stream():
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
async def test_a_wrong_key_has_a_close_code(key: str | None):
    async with serving(await make_app(api_key=["right"])) as url:
        with pytest.raises(ConnectionLost, match="4401") as lost:
            async with connect(url, key):
                pass
        assert lost.value.close_code == 4401
        async with connect(url.replace("http", "ws") + "/ws", "right") as client:
            assert client.welcome["t"] == "welcome"


async def test_a_rejected_connection_raises_the_servers_error():
    async with serving(await make_app(allowed_hosts=["other.example"])) as url:
        with pytest.raises(ServerRefused) as rejected:
            async with connect(url):
                pass
    assert (rejected.value.code, rejected.value.http_status) == ("host_not_allowed", 421)


async def test_a_foreign_error_response_is_raised_with_its_status():
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
