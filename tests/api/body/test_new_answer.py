"""Idempotency keys on both transports: what a second request with the same key is answered."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from starlette.applications import Starlette

from app.api.body import new_answer
from app.api.body.new_answer import NewAnswer
from app.api.body.parse_chat import parse_chat
from app.api.http.accounts import Sender
from app.api.routes.chat import chat_wire
from app.api.wire.api_request import ApiRequest
from app.contract.engine_status import EngineState
from tests.api.chat_client import body as chat_body
from tests.api.chat_client import open_chat
from tests.api.resuming import events_of, told
from tests.api.serving import client_of, connected, make_app, serving, until, with_grammars
from tests.fakes import FakeEngine, Script

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6},
    TEXT: {"prompt": "Hi", "max_tokens": 6},
}
KEY = {"idempotency-key": "key-1"}


async def post(client: httpx.AsyncClient, path: str = CHAT, headers: dict[str, str] = KEY, **fields: Any) -> Any:
    return await client.post(path, json=BODIES[path] | fields, headers=headers)


def answer_in(response: httpx.Response, is_streamed: bool) -> dict[str, Any]:
    answer: dict[str, Any] = told(events_of(response.text)) if is_streamed else response.json()
    return answer


def num_kept(app: Starlette) -> int:
    context = app.state.context
    assert len(context.kept.keys) <= len(context.kept)
    return len(context.kept)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_the_same_request_gets_the_same_answer(path: str, is_streamed: bool):
    engine = FakeEngine()
    app = await make_app(engine)
    async with client_of(app) as client:
        first = await post(client, path, stream=is_streamed)
        second = await post(client, path, stream=is_streamed)
    assert (first.status_code, second.status_code) == (200, 200)
    assert answer_in(second, is_streamed) == answer_in(first, is_streamed)
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert second.headers["x-quire-stream-id"] == first.headers["x-quire-stream-id"] == engine.requests[0].id
    assert len(engine.requests) == num_kept(app) == 1
    assert app.state.context.kept.counts.resumed["http"] == 1


async def test_a_request_whose_first_one_runs_reads_the_answer_from_its_beginning():
    engine = FakeEngine(held=True)
    app = await make_app(engine)
    async with client_of(app) as client:
        first = asyncio.create_task(post(client, stream=True))
        await until(lambda: engine.requests)
        engine.step(3)
        second = asyncio.create_task(post(client, stream=True))
        await until(lambda: len(app.state.context.kept.find(engine.requests[0].id, None).readers) == 2)
        engine.release()
        assert told(events_of((await first).text)) == told(events_of((await second).text))
    assert len(engine.requests) == 1


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_with_a_key_survives_its_client(is_streamed: bool):
    engine = FakeEngine(held=True)
    app = await make_app(engine)
    fields = BODIES[CHAT] | {"stream": is_streamed}
    async with serving(app) as url:
        async with connected(url) as connection:
            await connection.post(CHAT, fields, idempotency_key="key-1")
            await until(lambda: engine.requests)
            stream = app.state.context.kept.find(engine.requests[0].id, None)
            await until(lambda: stream.readers)
        await until(lambda: not stream.readers)
        engine.release()
        async with client_of(app) as client:
            response = await client.post(CHAT, json=fields, headers=KEY)
    assert (engine.aborted, len(engine.requests)) == ([], 1)
    assert response.headers["idempotent-replayed"] == "true"
    assert response.status_code == 200


async def test_the_bodies_of_equal_requests_may_be_written_differently():
    engine = FakeEngine()
    body = json.dumps({**dict(reversed(BODIES[TEXT].items()))}, indent=4)
    async with client_of(await make_app(engine)) as client:
        first = await post(client, TEXT)
        second = await client.post(TEXT, content=body, headers={**KEY, "content-type": "application/json"})
    assert second.content == first.content
    assert len(engine.requests) == 1


@pytest.mark.parametrize("fields", [{"max_tokens": 7}, {"stream": True}, {"unknown": 1}])
async def test_another_request_under_the_key_is_a_conflict(fields: dict[str, Any]):
    engine = FakeEngine()
    async with client_of(await make_app(engine)) as client:
        await post(client)
        response = await post(client, **fields)
        assert (response.status_code, response.json()["error"]["code"]) == (409, "idempotency_conflict")
        assert (await post(client, TEXT)).status_code == 200  # the keys of another route
    assert len(engine.requests) == 2


@pytest.mark.parametrize(
    ("value", "is_kept"), [("1", True), ("true", True), ("True", True), ("0", False), ("false", False), (None, False)]
)
async def test_the_header_says_whether_an_answer_can_be_resumed(value: str | None, is_kept: bool):
    app = await make_app(FakeEngine())
    async with client_of(app) as client:
        headers = {} if value is None else {"x-quire-resume": value}
        response = await post(client, headers=headers, stream=True)
    assert (response.status_code, "x-quire-stream-id" in response.headers) == (200, is_kept)
    assert num_kept(app) == is_kept


@pytest.mark.parametrize("values", [["yes"], [""], ["2"], ["1", "1"], ["1, 1"], ["\u00e9" * 500]])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_another_value_of_that_header_is_told_what_is_allowed(values: list[str], is_streamed: bool):
    engine = FakeEngine()
    app = await make_app(engine)
    headers = [("x-quire-resume", value.encode("latin-1")) for value in values]
    async with client_of(app) as client:
        response = await client.post(CHAT, json=BODIES[CHAT] | {"stream": is_streamed}, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", "X-Quire-Resume")
    assert "1 or true" in error["message"]
    assert len(error["message"]) < 300
    assert not engine.requests


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "\xe9", "a\tb"])
async def test_a_key_is_visible_ascii(key: str):
    async with client_of(await make_app(FakeEngine())) as client:
        response = await client.post(CHAT, json=BODIES[CHAT], headers=[("Idempotency-Key", key.encode("latin-1"))])
        twice = await client.post(CHAT, json=BODIES[CHAT], headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "a")])
    for one in (response, twice):
        assert (one.status_code, one.json()["error"]["param"]) == (400, "Idempotency-Key")


async def test_rejections_are_forgotten_and_failures_are_told_again():
    engine = FakeEngine(Script(fail_after=2))
    app = await make_app(engine)
    async with client_of(app) as client:
        assert (await post(client, max_tokens=0)).status_code == 400
        engine.port.state = EngineState.LOADING
        assert (await post(client)).status_code == 503
        engine.port.state = EngineState.READY
        assert num_kept(app) == len(app.state.context.kept.keys) == 0
        failed, again = await post(client), await post(client)
    assert (failed.status_code, again.status_code) == (500, 500)
    assert again.json()["error"] == failed.json()["error"]
    assert len(engine.requests) == 1


async def test_a_cancelled_answer_is_told_again_as_cancelled():
    engine = FakeEngine(held=True)
    async with client_of(await make_app(engine)) as client:
        first = asyncio.create_task(post(client))
        await until(lambda: engine.requests)
        await client.delete(f"/v1/streams/{engine.requests[0].id}")
        second = await post(client)
        assert (await first).status_code == second.status_code == 409
    assert second.json()["error"]["code"] == "stream_cancelled"


async def test_the_second_request_waits_while_the_first_is_prepared(monkeypatch: pytest.MonkeyPatch):
    engine, may_parse, num_parsed = FakeEngine(), asyncio.Event(), []
    parse_answer = new_answer.parse_answer

    async def held(*args: Any, **options: Any) -> ApiRequest:
        num_parsed.append(1)
        await may_parse.wait()
        return await parse_answer(*args, **options)

    monkeypatch.setattr(new_answer, "parse_answer", held)
    app = await make_app(engine)
    async with client_of(app) as client:
        requests = [asyncio.create_task(post(client)) for _ in range(3)]
        await until(lambda: app.state.context.kept.keys.num_waiting == 2)
        may_parse.set()
        responses = await asyncio.gather(*requests)
    assert len({response.content for response in responses}) == len(num_parsed) == len(engine.requests) == 1


@pytest.mark.parametrize("fields", [{"echo": True}, {"prompt_logprobs": 1}])
async def test_an_answer_that_cannot_be_kept_is_an_ordinary_one(fields: dict[str, Any]):
    engine = FakeEngine()
    app = await make_app(engine)
    async with client_of(app) as client:
        responses = [await post(client, TEXT, **fields) for _ in range(2)]
    assert [response.status_code for response in responses] == [200, 200]
    assert not any("idempotent-replayed" in response.headers for response in responses)
    assert (len(engine.requests), num_kept(app), len(app.state.context.kept.keys)) == (2, 0, 0)


async def test_without_memory_a_request_with_a_key_is_an_ordinary_one():
    engine = FakeEngine()
    app = await make_app(engine, resume_memory=0)
    async with client_of(app) as client:
        responses = [await post(client) for _ in range(2)]
    assert not any("x-quire-stream-id" in response.headers for response in responses)
    assert (len(engine.requests), len(app.state.context.kept.keys)) == (2, 0)


async def test_a_whole_answer_is_not_told_again_while_too_much_is_pending():
    app = await make_app(FakeEngine(), max_pending_bytes=2**20)
    async with client_of(app) as client:
        await post(client)
        await post(client, headers={"idempotency-key": "key-2"}, stream=True)
        pending = app.state.context.streams.pending_of("127.0.0.1")
        with pending.counted(2**20 + 1):
            assert (await post(client)).json()["error"]["code"] == "overloaded"
            assert (await post(client, headers={"idempotency-key": "key-2"}, stream=True)).status_code == 200
        assert (await post(client)).status_code == 200


async def test_two_api_keys_can_have_the_same_idempotency_key():
    engine = FakeEngine()
    app = await make_app(engine, api_key=["one", "two"])
    async with client_of(app) as client:
        responses = [
            await post(client, headers={**KEY, "authorization": f"Bearer {key}"}, max_tokens=number)
            for number, key in enumerate(["one", "two"], start=3)
        ]
    assert [response.status_code for response in responses] == [200, 200]
    assert [request.tenant for request in engine.requests] == ["key-1", "key-2"]


async def test_a_start_with_a_key_reads_the_answer_of_the_first():
    engine = FakeEngine()
    async with open_chat(engine) as chat:
        for client_id, fields in (("a", {}), ("b", {"ttl_s": 60}), ("other", {"max_tokens": 2})):
            request = chat_body(max_tokens=fields.pop("max_tokens", 4))
            await chat.send(t="start", id=client_id, request=request, idempotency_key="key-1", **fields)
            frames = await chat.receive_until("done", "error")
            if client_id == "a":
                first = frames
        assert (frames[-1]["id"], frames[-1]["code"], frames[-1]["status"]) == ("other", "idempotency_conflict", 409)
        await chat.send(t="start", id="c", request=chat_body(max_tokens=4), idempotency_key="key-1")
        again = await chat.receive_until("done")
        for key in ("", "x" * 256, "a b", 7):
            await chat.send(t="start", id="d", request=chat_body(), idempotency_key=key)
            error = await chat.receive()
            assert (error["id"], error["code"], error["param"]) == ("d", "invalid_value", "idempotency_key")
    assert first[0] == {**again[0], "id": "a"}
    assert first[0]["ttl_s"] == 300
    assert "".join(one.get("x", "") for one in first) == "".join(one.get("x", "") for one in again)
    assert len(engine.requests) == 1


async def test_a_start_whose_socket_is_lost_before_its_acceptance_is_begun_by_the_next(monkeypatch: pytest.MonkeyPatch):
    engine, is_parsing = FakeEngine(), asyncio.Event()
    parse_answer = new_answer.parse_answer

    async def held(*args: Any, **options: Any) -> ApiRequest:
        is_first = not is_parsing.is_set()
        is_parsing.set()
        if is_first:
            await asyncio.Event().wait()
        return await parse_answer(*args, **options)

    monkeypatch.setattr(new_answer, "parse_answer", held)
    start = {"t": "start", "id": "a", "request": chat_body(max_tokens=2), "ttl_s": 60, "idempotency_key": "key-1"}
    async with open_chat(engine) as chat:
        await chat.send(**start)
        await is_parsing.wait()
        async with open_chat(app=chat.app) as other:
            await other.send(**start)
            await until(lambda: chat.app.state.context.kept.keys.num_waiting == 1)
            chat.socket.transport.abort()
            assert (await other.receive_until("done", "error"))[-1]["t"] == "done"
    assert len(engine.requests) == 1


async def test_an_answer_whose_sender_goes_while_it_is_recorded_keeps_its_key_and_its_grammar():
    app = with_grammars(await make_app(FakeEngine(held=True)))
    context = app.state.context
    journal = context.journal = Mock(restored=AsyncMock(), flush=Mock(side_effect=asyncio.Event().wait))
    asked = NewAnswer(context, parse_chat, chat_wire, CHAT, Sender(), key="key-1")
    body = json.dumps(BODIES[CHAT] | {"regex": "a+"}).encode()
    begin = asyncio.create_task(asked.begin(body))
    await until(lambda: journal.flush.called)
    begin.cancel()
    await asyncio.wait([begin])
    (entry,) = context.grammars.entries.by_grammar.values()
    assert entry.leases
    journal.flush = AsyncMock()
    assert (await asked.begin(body)).is_replayed
