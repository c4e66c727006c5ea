"""A stream without credit is closed after the stall timeout, and a failed task of a socket leaves no stream open."""

import asyncio
import contextlib

from websockets.exceptions import ConnectionClosed

from app.api.wire.socket_stream import SocketStream
from app.streaming.chat_actions import ChatLimits
from tests.api.chat_client import StuckTransport, body, open_chat
from tests.api.serving import make_app, until
from tests.fakes import FakeEngine, Script

LONG = 1900


async def test_repeated_credit_does_not_reset_the_stall_timeout():
    engine = FakeEngine()
    limits = ChatLimits(stall_timeout_s=0.3, credits_per_s=1000)
    async with open_chat(engine, limits=limits) as chat:
        await chat.send(t="start", id="a", request=body(max_tokens=LONG), credit=1)
        closed = asyncio.create_task(chat.closed())
        with contextlib.suppress(ConnectionClosed):
            for _ in range(200):
                await asyncio.sleep(0.02)
                await chat.send(t="credit", id="a", upto=[0])
        assert await closed == 4499
        await until(lambda: engine.port.num_open == 0)


async def test_a_stream_without_credit_stalls_beside_one_that_is_read_slowly():
    engine = FakeEngine(Script(answer=["x" * 4096] * 100_000))
    transport = StuckTransport(await make_app(engine))

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "websocket.send":
            await asyncio.sleep(0.05)  # it accepts bytes all the time

    transport.websocket._send = send
    run = await transport.serve(ChatLimits(stall_timeout_s=0.3))
    transport.deliver(t="start", id="no-credit", request=body(max_tokens=LONG), credit=0)
    transport.deliver(t="start", id="with-credit", request=body(max_tokens=LONG), credit=LONG)
    await asyncio.wait_for(run, 30)
    assert len(engine.aborted) == 2


async def test_an_internal_error_in_a_socket_task_closes_its_streams(monkeypatch, caplog):
    engine = FakeEngine(held=True)
    async with open_chat(engine, limits=ChatLimits(stall_timeout_s=0.5)) as chat:
        await chat.start(max_tokens=50)
        await chat.receive_until("accepted")
        monkeypatch.setattr(SocketStream, "has_stalled", lambda stream, now: 1 / 0)
        await chat.closed()
        await until(lambda: chat.app.state.context.streams.num_open == 0)
        assert len(engine.aborted) == 1
    assert "internal error" in caplog.text
