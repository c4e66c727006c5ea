"""Responses on the wire: exact bytes, heartbeats, errors after the start, and disconnects."""

import asyncio
import json

import pytest

from app.api.body.parse_chat import parse_chat
from app.api.body.parse_completion import parse_completion
from app.api.http.context import StreamTimers
from app.api.wire.chat_format import ChatFormat
from app.api.wire.completion_format import CompletionFormat
from app.api.wire.framing import SSE
from app.api.wire.openai_wire import OpenAiWire
from app.api.wire.stream_response import make_response
from app.contract.engine_status import EngineState
from app.contract.errors import ErrorInfo
from app.contract.requests import Pause
from tests.api.serving import FAST, SLOW, Connection, connected, make_app, parse, raw, serving, until
from tests.fakes import FakeEngine, Script

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
NDJSON = {"accept": "application/x-ndjson"}


def chat(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3} | fields


def streamed(**fields: object) -> dict[str, object]:
    return chat(stream=True, **fields)


def payloads(body: bytes) -> list[bytes]:
    return [event.removeprefix(b"data: ") for event in body.split(b"\n\n")]


async def test_a_stream_has_exactly_these_bytes():
    engine = FakeEngine(Script(answer=["He", "llo", "", "!"]))
    async with serving(await make_app(engine)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed(max_tokens=9, stream_options={"include_usage": True}))
        status, headers = await connection.head()
        body = b"".join(await connection.chunks())
    assert status == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"
    first = json.loads(payloads(body)[0])
    head = (
        f'{{"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},"model":"guide",'
        '"choices":['
    )
    deltas = ['{"role":"assistant","content":""}', *(f'{{"content":"{text}"}}' for text in ("He", "llo", "!"))]
    choices = [f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":null}}' for delta in deltas]
    choices.append('{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}')
    num_prompt = len(engine.requests[0].prompt_token_ids)
    usage = (
        f'],"usage":{{"prompt_tokens":{num_prompt},"completion_tokens":4,"total_tokens":{num_prompt + 4},'
        '"prompt_tokens_details":{"cached_tokens":0}}}'
    )
    events = [f'{head}{choice}],"usage":null}}' for choice in choices] + [head + usage, "[DONE]"]
    assert body == "".join(f"data: {event}\n\n" for event in events).encode()
    assert first["id"] == engine.requests[0].id
    assert len(first["id"].removeprefix("chatcmpl-")) == 32


async def test_ndjson_has_the_same_payloads_one_per_line_and_no_done_event():
    engine = FakeEngine(Script(answer=["a", "b"]))
    async with serving(await make_app(engine)) as url:
        async with connected(url) as connection:
            await connection.post(TEXT, {"prompt": "Hi", "stream": True}, **NDJSON)
            status, headers = await connection.head()
            lines = b"".join(await connection.chunks()).decode()
        assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    assert lines.endswith("\n")
    chunks = [json.loads(line) for line in lines.splitlines()]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "b", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]


@pytest.mark.parametrize("headers", [{}, NDJSON], ids=["SSE", "NDJSON"])
@pytest.mark.parametrize("fields", [{}, {"n": 4}, {"n": 2, "best_of": 3}], ids=["one", "several", "ranked"])
async def test_a_complete_response_has_the_same_text_as_its_stream(fields, headers):
    engine = FakeEngine(Script(others=[["a", "b"], ["c"] * 50]))
    async with serving(await make_app(engine)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed(max_tokens=40, **fields), **headers)
        await connection.head()
        body = b"".join(await connection.chunks())
        await connection.post(CHAT, chat(max_tokens=40, **fields))
        _, head = await connection.head()
        complete = json.loads(await connection.reader.readexactly(int(head["content-length"])))
    lines = body.decode().splitlines() if headers else payloads(body)[:-2]
    choices = [json.loads(line)["choices"][0] for line in lines]
    for choice in complete["choices"]:
        role, *texts, end = [found for found in choices if found["index"] == choice["index"]]
        assert role["delta"] == {"role": "assistant", "content": ""}
        assert "".join(found["delta"]["content"] for found in texts) == choice["message"]["content"]
        assert [found["finish_reason"] for found in texts] == [None] * len(texts)
        assert end["finish_reason"] == choice["finish_reason"]
    reasons = [choice["finish_reason"] for choice in complete["choices"]]
    assert reasons == ["length", "stop", "length", "length"][: len(reasons)]
    assert len(reasons) == fields.get("n", 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_aborts_the_request(stream):
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url:
        async with connected(url) as connection:
            await connection.post(CHAT, chat(stream=stream, max_tokens=100))
            await until(lambda: engine.requests)
            engine.step(2)
            if stream:
                await connection.head()
                await connection.chunk()
        await until(lambda: engine.aborted)
        assert engine.aborted == [engine.requests[0].id]
        assert engine.port.num_open == 0


async def test_a_disconnect_before_the_first_event_aborts_the_request():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url:
        async with connected(url) as connection:
            await connection.post(CHAT, streamed())
            await until(lambda: engine.requests)
        await until(lambda: engine.aborted)


async def test_a_response_read_to_its_end_aborts_nothing():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url, connected(url) as connection:
        for stream in (True, False):
            await connection.post(CHAT, chat(stream=stream))
            _, headers = await connection.head()
            if stream:
                await connection.chunks()
            else:
                await connection.reader.readexactly(int(headers["content-length"]))
    assert engine.aborted == []


async def test_nothing_is_sent_before_the_first_event_of_the_engine():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine, timers=SLOW)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed())
        await until(lambda: engine.requests)
        async with connected(url) as other:  # after this, the server has had time to respond
            other.writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await other.head()
        assert not connection.reader._buffer
        engine.release()
        assert (await connection.head())[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_fails_before_its_first_token_has_an_error_status(stream):
    engine = FakeEngine(Script(fail_after=0, error=ErrorInfo("engine_error", "It broke.")))
    async with serving(await make_app(engine)) as url, connected(url) as connection:
        await connection.post(CHAT, chat(stream=stream))
        status, headers = await connection.head()
        body = json.loads(await connection.reader.readexactly(int(headers["content-length"])))
    assert status == 500
    assert headers["x-should-retry"] == "false"
    assert body == {"error": {"message": "It broke.", "type": "server_error", "param": None, "code": "engine_error"}}


@pytest.mark.parametrize("headers", [{}, NDJSON], ids=["sse", "ndjson"])
async def test_an_error_after_the_start_is_the_last_event(headers):
    engine = FakeEngine(Script(fail_after=2, error=ErrorInfo("engine_error", "It broke.")))
    async with serving(await make_app(engine)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed(), **headers)
        assert (await connection.head())[0] == 200
        body = b"".join(await connection.chunks())
    error = b'{"error":{"message":"It broke.","type":"server_error","param":null,"code":"engine_error"}}'
    assert body.endswith(error + b"\n" if headers else b"data: " + error + b"\n\n")
    assert b"[DONE]" not in body
    assert b'finish_reason":"' not in body


async def test_after_a_first_heartbeat_an_error_is_sent_as_an_event():
    engine = FakeEngine(Script(fail_after=0), held=True)
    async with serving(await make_app(engine, timers=FAST)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed())
        assert (await connection.head())[0] == 200
        assert await connection.chunk() == b": \n"
        assert await connection.chunk() == b": \n"
        engine.release()
        body = b"".join(await connection.chunks())
    assert b'data: {"error":' in body


async def test_heartbeats_are_sent_between_events():
    engine = FakeEngine(held=True)
    timers = StreamTimers(waiting_s=60, generating_s=0.02)  # on a busy machine, one could come before the first event
    async with serving(await make_app(engine, timers=timers)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed())
        await until(lambda: engine.requests)
        engine.step()
        await connection.head()
        assert (await connection.chunk()).startswith(b"data: ")
        assert await connection.chunk() == b": \n"
        engine.release()
        body = b"".join(await connection.chunks())
    assert body.replace(b": \n", b"").startswith(b"data: ")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_a_ranked_stream_has_heartbeats_until_its_choices_are_known():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine, timers=FAST)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed(best_of=2))
        await until(lambda: engine.requests)
        engine.step(2)
        assert (await connection.head())[0] == 200
        assert await connection.chunk() == await connection.chunk() == b": \n"
        engine.release()
        events = payloads(b"".join(await connection.chunks()).replace(b": \n", b""))
    assert [json.loads(event)["choices"][0]["delta"].keys() for event in events[:-2]] == [
        {"role", "content"}, {"content"}, set(),
    ]  # fmt: skip


async def test_waiting_and_generating_have_separate_heartbeat_intervals():
    engine = FakeEngine(held=True)
    timers = StreamTimers(waiting_s=60, generating_s=0.01)
    async with serving(await make_app(engine, timers=timers)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed())
        await until(lambda: engine.requests)
        engine.step()
        await connection.head()
        await connection.chunk()
        assert await connection.chunk() == b": \n"


async def test_the_heartbeat_of_ndjson_is_an_empty_line():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine, timers=FAST)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed(), **NDJSON)
        await connection.head()
        assert await connection.chunk() == b"\n"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_past_its_deadline_gets_a_504_streamed_or_not(stream):
    error = ErrorInfo("deadline_exceeded", "Too late.", "timeout", http_status=504, type="timeout_error")
    engine = FakeEngine(Script(fail_after=0, error=error))
    async with serving(await make_app(engine)) as url, connected(url) as connection:
        await connection.post(CHAT, chat(stream=stream, n=2, timeout=0.5))
        status, headers = await connection.head()
        body = json.loads(await connection.reader.readexactly(int(headers["content-length"])))
    assert (status, body["error"]["code"], headers["x-should-retry"]) == (504, "deadline_exceeded", "false")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_by_the_server_is_the_error_draining(stream):
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url, connected(url) as connection:
        await connection.post(CHAT, chat(stream=stream))
        await until(lambda: engine.requests)
        if stream:
            engine.step()
            await connection.head()
            await connection.chunk()
        engine.abort(engine.requests[0].id)
        if stream:
            rest = b"".join(await connection.chunks())
            assert b'"code":"draining"' in rest
            assert b"cancelled" not in rest
        else:
            assert (await connection.head())[0] == 503


async def test_an_engine_that_crashes_ends_open_streams_with_an_error():
    engine = FakeEngine(Script(crash_after=1))
    async with serving(await make_app(engine)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed())
        assert (await connection.head())[0] == 200
        assert b'"code":"engine_error"' in b"".join(await connection.chunks())
    assert engine.port.state is EngineState.FAILED


async def test_ignored_fields_are_named_in_a_header_that_they_cannot_forge():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url, connected(url) as connection:
        await connection.post(CHAT, streamed(loudness="low", **{"a\r\nx-evil: 1": 1, "名": 2}))
        _, headers = await connection.head()
        await connection.chunks()
        assert headers["x-quire-ignored"] == "loudness, a%0D%0Ax-evil%3A%201, %E5%90%8D"
        assert "x-evil" not in headers


async def test_32_concurrent_streams_have_the_texts_they_have_alone():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url:
        connections = [await _ask(url, f"question {number}") for number in range(32)]
        together = [b"".join(await connection.chunks()) for connection in connections]
        for number, connection in enumerate(connections):
            await connection.close()
            alone = await _ask(url, f"question {number}")
            assert _texts(b"".join(await alone.chunks())) == _texts(together[number])
            await alone.close()


async def _ask(url, question):
    connection = await Connection.open(url)
    await connection.post(CHAT, streamed(messages=[{"role": "user", "content": question}], max_tokens=20))
    await connection.head()
    return connection


def _texts(body: bytes) -> str:
    chunks = [json.loads(payload) for payload in payloads(body)[:-2]]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


async def test_a_coalescing_slow_reader_gets_all_text_in_fewer_events():
    engine = FakeEngine(Script(answer=["x" * 1024] * 1900))
    async with serving(await make_app(engine)) as url, connected(url, receive_buffer=4096) as connection:
        await connection.post(CHAT, streamed(max_tokens=2000, stream_options={"slow_reader": "coalesce"}))
        await until(lambda: any(isinstance(command, Pause) for command in engine.port.posted))
        await connection.head()
        events = payloads(b"".join(await connection.chunks()))
    texts = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-2]]
    assert sum(map(len, texts)) == 1900 * 1024
    assert len(texts) < 1900  # pending deltas were merged
    assert events[-2:] == [b"[DONE]", b""]


async def test_events_without_text_send_nothing():
    messages = []

    async def send(message):
        messages.append(message)

    engine = FakeEngine(Script(answer=["", "a", "", "b"]))
    context = (await make_app(engine)).state.context
    completion = await parse(raw({"prompt": "Hi", "stream": True}), context, parse_completion)
    response = make_response(context, completion, OpenAiWire(completion, CompletionFormat(completion), SSE))
    await response({"type": "http"}, asyncio.Queue().get, send)
    assert [message["type"] for message in messages] == ["http.response.start"] + ["http.response.body"] * 2
    assert all(message["body"] for message in messages[1:])
    assert [message["more_body"] for message in messages[1:]] == [True, False]


async def test_a_response_cancelled_at_once_aborts_its_request():
    engine = FakeEngine(held=True)
    context = (await make_app(engine)).state.context
    request = await parse(raw(streamed()), context, parse_chat)
    response = make_response(context, request, OpenAiWire(request, ChatFormat(request), SSE))
    task = asyncio.create_task(response({"type": "http"}, asyncio.Queue().get, asyncio.Queue().put))
    await until(lambda: engine.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.aborted == [engine.requests[0].id]
