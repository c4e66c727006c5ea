"""A stream that waits for credit is cut in time, whatever keeps its socket busy; no task's end leaves one behind."""

import asyncio
import contextlib

from websockets.exceptions import ConnectionClosed

from app.api.socket_stream import SocketStream
from app.streaming.chat_protocol import ChatLimits
from tests.api.serving import make_app, until
from tests.api.talk import StuckTransport, body, talking
from tests.fakes import FakeEngine, Script

LONG = 1900


async def test_the_same_credit_again_and_again_is_none():
    engine = FakeEngine()
    limits = ChatLimits(stall_timeout_s=0.3, credits_per_s=1000)
    async with talking(engine, limits=limits) as talk:
        await talk.say(t="start", id="a", request=body(max_tokens=LONG), credit=1)
        closed = asyncio.create_task(talk.closed())
        with contextlib.suppress(ConnectionClosed):
            for _ in range(200):
                await asyncio.sleep(0.02)
                await talk.say(t="credit", id="a", upto=[0])
        assert await closed == 4499
        await until(lambda: engine.port.num_open == 0)


async def test_a_stream_without_credit_is_cut_beside_one_that_is_read_slowly():
    engine = FakeEngine(Script(answer=["x" * 4096] * 100_000))
    transport = StuckTransport(await make_app(engine))

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "websocket.send":
            await asyncio.sleep(0.05)  # it takes bytes all the time

    transport.websocket._send = send
    run = await transport.conversing(ChatLimits(stall_timeout_s=0.3))
    transport.say(t="start", id="starved", request=body(max_tokens=LONG), credit=0)
    transport.say(t="start", id="fed", request=body(max_tokens=LONG), credit=LONG)
    await asyncio.wait_for(run, 30)
    assert len(engine.aborted) == 2


async def test_a_mistake_in_a_task_of_the_socket_leaves_no_stream_behind(monkeypatch, caplog):
    engine = FakeEngine(held=True)
    async with talking(engine, limits=ChatLimits(stall_timeout_s=0.5)) as talk:
        await talk.start(max_tokens=50)
        await talk.hear_until("accepted")
        monkeypatch.setattr(SocketStream, "has_stalled", lambda stream, now: 1 / 0)
        await talk.closed()
        await until(lambda: talk.app.state.context.streams.num_open == 0)
        assert len(engine.aborted) == 1
    assert "internal error" in caplog.text
