"""Graceful shutdown: clients get a notice, open requests may finish, and the wait has a limit."""

import asyncio
import contextlib
import json

import pytest

from app.contract.engine_status import EngineState
from app.streaming import drain as drain_module
from app.streaming.drain import Drain
from app.streaming.session import Session
from app.streaming.streams import Streams
from tests.api.chat_client import HELLO, ChatClient, body, connect_socket, open_chat, text
from tests.api.serving import HANG_S, Connection, client_of, connected, make_app, serving, until
from tests.fakes import FakeClock, FakeEngine, Script, make_request, text_of, turn_loop

CHAT = "/v1/chat/completions"


async def test_a_drain_waits_for_the_engine_the_readers_and_the_sockets_in_turn():
    engine, streams = FakeEngine(held=True), Streams()
    drain, notices = Drain(engine, streams), []
    session = Session(engine, make_request(max_tokens=2), streams=streams)
    session.open()
    with drain.listening(notices.append):
        ending = asyncio.create_task(drain.run(60))
        await turn_loop()
        assert notices == [60]
        assert engine.health().state is EngineState.DRAINING
        engine.step(2)
        await turn_loop()
        assert not ending.done()  # the tokens have not been read
        session.close()
        await turn_loop()
        assert not ending.done()
    await asyncio.wait_for(ending, 30)


async def test_open_requests_are_aborted_at_the_deadline():
    engine, streams = FakeEngine(held=True), Streams()
    engine.port.run_thread()
    async with Session(engine, make_request(), streams=streams) as session:
        ending = asyncio.create_task(Drain(engine, streams).run(0))
        async for _ in session:  # the tokens until the abort, then the end
            pass
    await asyncio.wait_for(ending, 30)
    assert session.is_finished


async def test_a_listener_added_during_a_drain_gets_the_remaining_time():
    clock = FakeClock(100)
    drain, notices = Drain(FakeEngine(), Streams(), clock), []
    await drain.run(30)
    clock.advance(10)
    with drain.listening(notices.append):
        pass
    clock.advance(100)
    with drain.listening(notices.append):
        pass
    assert notices == [20, 0]


async def test_a_socket_gets_draining_finishes_its_streams_and_is_closed_with_1012():
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        await chat.start(max_tokens=30)
        await chat.receive_until("accepted")
        engine.step(3)
        ending = asyncio.create_task(chat.app.state.context.drain.run(60))
        frames = await chat.receive_until("draining")
        assert frames[-1] == {"t": "draining", "deadline_ms": 60_000}
        await chat.start("late")
        late = await chat.receive_until("error")
        assert (late[-1]["id"], late[-1]["code"], late[-1]["status"]) == ("late", "draining", 503)
        engine.release()
        frames += late + await chat.receive_until("done")
        assert text(frames) == text_of(engine.requests[0].prompt_token_ids, 30)
        assert await chat.closed() == 1012
        await asyncio.wait_for(ending, 30)


async def test_a_drain_closes_a_socket_without_streams_at_once():
    async with open_chat(FakeEngine()) as chat:
        ending = asyncio.create_task(chat.app.state.context.drain.run(60))
        assert (await chat.receive())["t"] == "draining"
        assert await chat.closed() == 1012
        await asyncio.wait_for(ending, 30)


async def test_a_client_that_disconnects_during_a_drain_is_not_logged_as_an_error(caplog):
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        await chat.start()
        await chat.receive_until("accepted")
        ending = asyncio.create_task(chat.app.state.context.drain.run(60))
        await chat.receive_until("draining")
        chat.socket.transport.abort()
        await asyncio.wait_for(ending, 30)
    assert engine.port.num_open == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_drain_closes_a_socket_that_has_not_sent_hello():
    app = await make_app(FakeEngine())
    async with serving(app) as url, connect_socket(url) as socket:
        await until(lambda: app.state.context.drain._listeners)
        ending = asyncio.create_task(app.state.context.drain.run(60))
        assert await ChatClient(socket).closed() == 1012
        await asyncio.wait_for(ending, 30)


async def read_last_line(connection: Connection) -> bytes:
    return b"".join(await connection.chunks()).strip().splitlines()[-1]


async def test_requests_that_exceed_the_drain_get_a_final_error_on_every_transport(monkeypatch):
    monkeypatch.setattr(drain_module, "CLOSE_GRACE_S", HANG_S)  # a busy machine needs time
    engine = FakeEngine(Script(answer=["x" * 4096] * 2000), held=True)
    engine.port.run_thread()
    app = await make_app(engine)
    async with serving(app) as url, connect_socket(url) as socket, contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connected(url)) for _ in range(3)]
        request_body = body(max_tokens=2000, stream=True)
        await connections[0].post(CHAT, request_body)
        await connections[1].post(CHAT, request_body, accept="application/x-ndjson")
        await connections[2].post(CHAT, request_body | {"stream": False})
        chat = ChatClient(socket)
        await chat.send(**HELLO)
        await until(lambda: len(engine.requests) == 3)
        for connection in connections[:2]:  # a stream that had not begun would get a 503
            assert (await connection.head())[0] == 200
        # The clients read during the drain, since the final error must be read; earlier the streams would finish.
        ending = asyncio.create_task(app.state.context.drain.run(0))
        await until(lambda: len(engine.aborted) == 3)
        last_lines = await asyncio.gather(*map(read_last_line, connections[:2]))
        for last, before in zip(last_lines, (b"data: ", b""), strict=True):
            assert json.loads(last.removeprefix(before))["error"]["code"] == "draining"
        status, _ = await connections[2].head()
        assert status == 503
        assert await chat.closed() == 1012
        await ending


async def test_a_stream_without_credit_gets_the_final_error():
    engine = FakeEngine(held=True)
    engine.port.run_thread()
    async with open_chat(engine) as chat:
        await chat.send(t="start", id="a", request=body(max_tokens=1900), credit=5)
        await chat.receive_until("paused")
        ending = asyncio.create_task(chat.app.state.context.drain.run(0.05))
        frames = await chat.receive_until("error", "done")
        assert (frames[-1]["id"], frames[-1]["code"]) == ("a", "draining")
        assert await chat.closed() == 1012
        await asyncio.wait_for(ending, 30)


@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_during_a_drain_the_server_is_live_but_not_ready(path: str):
    engine = FakeEngine(held=True)
    app = await make_app(engine)
    async with client_of(app) as client:
        await app.state.context.drain.run(0)
        ready = await client.get(path)
        assert (ready.status_code, ready.json()["status"], ready.headers["retry-after"]) == (503, "draining", "1")
        assert (await client.get("/livez")).status_code == 200
        rejected = await client.post(CHAT, json={"messages": [{"role": "user", "content": "Hi"}]})
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (503, "draining")
        assert rejected.headers["retry-after"]
