"""`/v1/streams/{id}`: what each request is answered, and to whom."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from app.contract.engine_status import EngineState
from app.contract.errors import Overloaded
from app.streaming.kept.live_stream import MAX_READERS
from app.streaming.kept.waiting_reader import WaitingReader
from tests.api.resuming import RESUME, events_of, post, told
from tests.api.serving import client_of, make_app, until
from tests.fakes import FakeEngine, Script, turn_loop
from tests.house.source import ROOT

TEXT = "/v1/completions"
BODY = {"prompt": [300, 301], "max_tokens": 4}


@asynccontextmanager
async def ended(engine: FakeEngine | None = None, **body: Any) -> AsyncIterator[tuple[httpx.AsyncClient, str, Any]]:
    """A client, the path of a stream that has ended, and the application."""
    app = await make_app(engine or FakeEngine())
    async with client_of(app) as client:
        response = await post(client, TEXT, {**BODY, **body}, **RESUME)
        yield client, f"/v1/streams/{response.headers['x-quire-stream-id']}", app


async def test_the_header_wins_over_the_query():
    async with ended() as (client, path, app):
        at_header = await client.get(path, params={"after": "0"}, headers={"last-event-id": "3"})
        at_query = await client.get(path, params={"after": "3"})
    assert [event.id for event in events_of(at_header.text)] == ["4", "4", "4", "end"]
    assert at_query.text == at_header.text
    assert app.state.context.kept.counts.resumed == {"http": 2, "websocket": 0}


async def test_the_end_is_no_content():
    async with ended() as (client, path, _):
        for request in ({"params": {"after": "end"}}, {"headers": {"last-event-id": "end"}}):
            response = await client.get(path, **request)
            assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize("after", ["", "x", "-1", "5", "1.1", "1,1", "1" * 10, "٣", "1e0", "01x", "end.end"])
async def test_a_position_that_was_not_told_is_rejected(after: str):
    async with ended() as (client, path, _):
        response = await client.get(path, params={"after": after})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", "after")


async def test_a_head_says_where_a_stream_is():
    async with ended(n=2) as (client, path, _):
        response = await client.head(path)
    assert response.status_code == 200
    assert response.headers["x-quire-position"] == "4.4"
    assert response.headers["x-quire-state"] == "finished"
    assert response.headers["x-quire-stream-id"] == path.rpartition("/")[2]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.content == b""


async def test_a_delete_ends_a_stream_for_its_readers_and_those_that_come_later():
    engine = FakeEngine(Script(answer=["a", "b", "c"]), held=True)
    app = await make_app(engine)
    async with client_of(app) as client:
        posted = asyncio.create_task(post(client, TEXT, BODY, **RESUME))
        await until(lambda: engine.requests)
        engine.step(2)
        await turn_loop()
        path = f"/v1/streams/{engine.requests[0].id}"
        assert (await client.head(path)).headers["x-quire-state"] == "running"
        assert (await client.delete(path)).status_code == 204
        assert (await client.delete(path)).status_code == 204
        assert (await client.head(path)).headers["x-quire-state"] == "cancelled"
        first, later = (await posted).text, (await client.get(path)).text
        nothing_left = await client.get(path, params={"after": "2"})
    for body in (first, later):
        *texts, error = events_of(body)
        assert told(texts)["choices"][0]["text"] == "ab"
        assert error.payload["error"]["code"] == "stream_cancelled"
        assert error.id == "2"
    assert (nothing_left.status_code, nothing_left.json()["error"]["code"]) == (409, "stream_cancelled")
    assert engine.aborted == [engine.requests[0].id]


async def test_an_answer_that_was_not_streamed_is_read_as_a_stream():
    async with client_of(await make_app(FakeEngine())) as client:
        whole = await client.post(TEXT, json=BODY, headers={"idempotency-key": "key"})
        rest = await client.get(f"/v1/streams/{whole.headers['x-quire-stream-id']}")
    events = events_of(rest.text)
    assert events[-1] == ("end", "[DONE]")
    assert told(events)["choices"][0]["text"] == whole.json()["choices"][0]["text"]


async def test_a_failed_answer_is_told_again_with_its_error():
    async with ended(FakeEngine(Script(fail_after=2))) as (client, path, _):
        response = await client.get(path)
        assert (await client.head(path)).headers["x-quire-state"] == "failed"
    assert events_of(response.text)[-1].payload["error"]["code"] == "engine_error"


async def test_another_keys_stream_is_as_unknown_as_any():
    app = await make_app(FakeEngine(), api_key=("one", "two"))
    async with client_of(app) as client:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        response = await post(client, TEXT, BODY, **RESUME, **one)
        path = f"/v1/streams/{response.headers['x-quire-stream-id']}"
        guessed = f"/v1/streams/cmpl-{'0' * 32}"
        for method in ("GET", "HEAD", "DELETE"):
            foreign = await client.request(method, path, headers=two)
            unknown = await client.request(method, guessed, headers=two)
            assert foreign.status_code == unknown.status_code == 404
            assert foreign.content == unknown.content
            assert {**foreign.headers, "x-request-id": ""} == {**unknown.headers, "x-request-id": ""}
            assert (await client.request(method, path)).status_code == 401
            assert (await client.request(method, path, params={"after": "x"}, headers=two)).status_code == 404
        assert foreign.json()["error"]["code"] == "stream_not_found"
        assert (await client.get(path, headers=one)).status_code == 200


@contextmanager
def calls_of_app() -> Iterator[list[tuple[str, str]]]:
    """The functions that the application calls in the block, its own and others, in their order."""
    root, found = str(ROOT / "app"), []

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(root):
            found.append((frame.f_code.co_qualname, called.__name__ if event == "c_call" else ""))

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
async def test_unknown_expired_and_foreign_ids_cost_the_same_work(method: str):
    """The time that a guess takes says nothing of what there is: the same calls are made for all, in the same order."""
    application = await make_app(FakeEngine(), api_key=("one", "two"))
    kept = application.state.context.kept
    async with client_of(application) as client:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        foreign, expired, unknown = [
            (await post(client, TEXT, BODY, **RESUME, **key)).headers["x-quire-stream-id"] for key in (one, two, two)
        ]
        for stream_id in (expired, unknown):
            kept.forget(kept.find(stream_id, "key-2"))
        unknown = f"{unknown[:-1]}{'1' if unknown[-1] == '0' else '0'}"
        for with_query in ({}, {"after": "3"}, {"after": "x"}):
            work = []
            for stream_id in (unknown, foreign, expired):
                await asyncio.sleep(0)  # each is the first request of its turn of the loop
                with calls_of_app() as calls:
                    response = await client.request(method, f"/v1/streams/{stream_id}", headers=two, params=with_query)
                work.append((response.status_code, response.content, calls))
            assert work[0] == work[1] == work[2]
            assert work[0][0] == 404 and any(name == "KeptStreams.find" for name, _ in work[0][2])


async def test_a_ninth_reader_gets_a_status():
    async with ended() as (client, path, app):
        stream = app.state.context.kept.find(path.rpartition("/")[2], None)
        for _ in range(MAX_READERS):
            WaitingReader(stream).open()
        response = await client.get(path)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limit_exceeded")


@pytest.mark.parametrize("state", [EngineState.LOADING, EngineState.FAILED])
async def test_what_is_kept_is_told_whatever_the_engine_does(state: EngineState):
    engine = FakeEngine()
    async with ended(engine) as (client, path, _):
        engine.port.state = state
        assert (await client.get(path)).status_code == 200


async def test_a_rejected_request_keeps_nothing():
    engine = FakeEngine()
    engine.submit_all = Mock(side_effect=Overloaded("The queue is full."))  # type: ignore[method-assign]
    app = await make_app(engine)
    async with client_of(app) as client:
        response = await client.post(TEXT, json={**BODY, "stream": True}, headers=RESUME)
    assert response.status_code == 503
    assert len(app.state.context.kept) == 0


async def test_other_methods_are_told_which_are_allowed():
    async with ended() as (client, path, _):
        response = await client.post(path)
    assert response.status_code == 405
    assert {*response.headers["allow"].split(", ")} == {"GET", "HEAD", "DELETE"}
