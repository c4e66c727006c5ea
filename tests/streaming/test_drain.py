"""The end of a server is polite: everybody hears of it, what is open may end, nobody waits for ever."""

import asyncio
import contextlib
import json

import pytest

from app.contract.engine_status import EngineState
from app.streaming import drain as drain_module
from app.streaming.drain import Drain
from app.streaming.session import Session
from app.streaming.streams import Streams
from tests.api.serving import HANG_S, Connection, client_of, connected, make_app, serving, until
from tests.api.talk import HELLO, Talk, body, opened, talking, text
from tests.fakes import FakeClock, FakeEngine, Script, make_request, text_of, turn_loop

CHAT = "/v1/chat/completions"


async def test_it_waits_for_the_engine_the_readers_and_the_sockets_in_turn():
    engine, streams = FakeEngine(held=True), Streams()
    drain, told = Drain(engine, streams), []
    session = Session(engine, make_request(max_tokens=2), streams=streams)
    session.open()
    with drain.listening(told.append):
        ending = asyncio.create_task(drain.run(60))
        await turn_loop()
        assert told == [60]
        assert engine.health().state is EngineState.DRAINING
        engine.step(2)
        await turn_loop()
        assert not ending.done()  # the reader has not come for it
        session.close()
        await turn_loop()
        assert not ending.done()
    await asyncio.wait_for(ending, 30)


async def test_after_the_deadline_what_is_open_is_aborted():
    engine, streams = FakeEngine(held=True), Streams()
    engine.port.run_thread()
    async with Session(engine, make_request(), streams=streams) as session:
        ending = asyncio.create_task(Drain(engine, streams).run(0))
        async for _ in session:  # what it had made by then, however much, then its end
            pass
    await asyncio.wait_for(ending, 30)
    assert session.is_finished


async def test_who_comes_after_its_beginning_is_told_how_much_is_left():
    clock = FakeClock(100)
    drain, told = Drain(FakeEngine(), Streams(), clock), []
    await drain.run(30)
    clock.advance(10)
    with drain.listening(told.append):
        pass
    clock.advance(100)
    with drain.listening(told.append):
        pass
    assert told == [20, 0]


async def test_a_socket_hears_of_it_keeps_its_streams_to_their_end_and_is_closed_with_1012():
    engine = FakeEngine(held=True)
    async with talking(engine) as talk:
        await talk.start(max_tokens=30)
        await talk.hear_until("accepted")
        engine.step(3)
        ending = asyncio.create_task(talk.app.state.context.drain.run(60))
        frames = await talk.hear_until("draining")
        assert frames[-1] == {"t": "draining", "deadline_ms": 60_000}
        await talk.start("late")
        late = await talk.hear_until("error")
        assert (late[-1]["id"], late[-1]["code"], late[-1]["status"]) == ("late", "draining", 503)
        engine.release()
        frames += late + await talk.hear_until("done")
        assert text(frames) == text_of(engine.requests[0].prompt_token_ids, 30)
        assert await talk.closed() == 1012
        await asyncio.wait_for(ending, 30)


async def test_a_socket_without_streams_is_closed_at_once():
    async with talking(FakeEngine()) as talk:
        ending = asyncio.create_task(talk.app.state.context.drain.run(60))
        assert (await talk.hear())["t"] == "draining"
        assert await talk.closed() == 1012
        await asyncio.wait_for(ending, 30)


async def test_a_client_that_leaves_in_the_middle_of_it_is_no_mistake(caplog):
    engine = FakeEngine(held=True)
    async with talking(engine) as talk:
        await talk.start()
        await talk.hear_until("accepted")
        ending = asyncio.create_task(talk.app.state.context.drain.run(60))
        await talk.hear_until("draining")
        talk.socket.transport.abort()
        await asyncio.wait_for(ending, 30)
    assert engine.port.num_open == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_socket_that_has_said_nothing_is_closed_too():
    app = await make_app(FakeEngine())
    async with serving(app) as url, opened(url) as socket:
        await until(lambda: app.state.context.drain._listeners)
        ending = asyncio.create_task(app.state.context.drain.run(60))
        assert await Talk(socket).closed() == 1012
        await asyncio.wait_for(ending, 30)


async def read_last_line(connection: Connection) -> bytes:
    return b"".join(await connection.chunks()).strip().splitlines()[-1]


async def test_answers_that_do_not_end_in_time_get_a_last_word_on_every_transport(monkeypatch):
    monkeypatch.setattr(drain_module, "CLOSE_GRACE_S", HANG_S)  # the clients take what they need on a busy machine
    engine = FakeEngine(Script(answer=["x" * 4096] * 2000), held=True)
    engine.port.run_thread()
    app = await make_app(engine)
    async with serving(app) as url, opened(url) as socket, contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connected(url)) for _ in range(3)]
        asked = body(max_tokens=2000, stream=True)
        await connections[0].post(CHAT, asked)
        await connections[1].post(CHAT, asked, accept="application/x-ndjson")
        await connections[2].post(CHAT, asked | {"stream": False})
        talk = Talk(socket)
        await talk.say(**HELLO)
        await until(lambda: len(engine.requests) == 3)
        for connection in connections[:2]:  # a stream that had not begun would be answered 503
            assert (await connection.head())[0] == 200
        # The clients read while the server drains, for a last word needs a reader: not before, or they would end.
        ending = asyncio.create_task(app.state.context.drain.run(0))
        await until(lambda: len(engine.aborted) == 3)
        last_words = await asyncio.gather(*map(read_last_line, connections[:2]))
        for last, before in zip(last_words, (b"data: ", b""), strict=True):
            assert json.loads(last.removeprefix(before))["error"]["code"] == "draining"
        status, _ = await connections[2].head()
        assert status == 503
        assert await talk.closed() == 1012
        await ending


async def test_a_stream_without_credit_gets_a_last_word_too():
    engine = FakeEngine(held=True)
    engine.port.run_thread()
    async with talking(engine) as talk:
        await talk.say(t="start", id="a", request=body(max_tokens=1900), credit=5)
        await talk.hear_until("paused")
        ending = asyncio.create_task(talk.app.state.context.drain.run(0.05))
        frames = await talk.hear_until("error", "done")
        assert (frames[-1]["id"], frames[-1]["code"]) == ("a", "draining")
        assert await talk.closed() == 1012
        await asyncio.wait_for(ending, 30)


@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_while_it_lasts_no_more_requests_should_be_sent_here(path: str):
    engine = FakeEngine(held=True)
    app = await make_app(engine)
    async with client_of(app) as client:
        await app.state.context.drain.run(0)
        ready = await client.get(path)
        assert (ready.status_code, ready.json()["status"], ready.headers["retry-after"]) == (503, "draining", "1")
        assert (await client.get("/livez")).status_code == 200
        refused = await client.post(CHAT, json={"messages": [{"role": "user", "content": "Hi"}]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["retry-after"]
