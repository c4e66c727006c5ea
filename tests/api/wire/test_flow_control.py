"""A slow reader slows only its own stream: generation pauses, no token is lost, and a timeout ends a stall."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.exceptions import ConnectionClosed

from app.api.wire.socket_stream import SocketStream
from app.api.wire.stream_response import StreamResponse
from app.config.settings import make_config
from app.contract.requests import Pause, Resume
from app.observe.log import JsonFormatter
from app.runtime.stall_detector import MIN_OBSERVATIONS
from app.streaming.chat_actions import ChatLimits
from app.streaming.flow.ack_monitor import AckMonitor
from tests.api.chat_client import ChatClient, StuckTransport, body, open_chat, text
from tests.api.serving import HANG_S, SLOW, Connection, connected, looks, make_app, serving, until
from tests.fakes import FakeEngine, Script, text_of

CHAT = "/v1/chat/completions"
LONG = 1900
ACCEPT = {"sse": "text/event-stream", "ndjson": "application/x-ndjson"}


def long_request(**fields: object) -> dict[str, object]:
    return {**body(), "stream": True, "max_tokens": LONG, **fields}


def text_of_stream(stream: bytes) -> str:
    """The text of a stream in either framing."""
    lines = [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith((b"data: {", b"{"))]
    chunks = [json.loads(line) for line in lines]
    assert not any("error" in chunk for chunk in chunks)
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


def num_generated(engine: FakeEngine, index: int = 0) -> int:
    """The number of tokens that the fake engine has generated for an open request."""
    return engine.port.num_tokens(engine.requests[index].id)


def is_paused(engine: FakeEngine, index: int = 0) -> bool:
    return len(engine.requests) > index and engine.port.is_paused(engine.requests[index].id)


@asynccontextmanager
async def unread(engine: FakeEngine, framing: str = "sse", **settings: object) -> AsyncIterator[Connection]:
    """A connection that has sent a long request and reads nothing."""
    app = await make_app(engine, make_config(settings), SLOW)
    async with serving(app) as url, connected(url, receive_buffer=4096) as connection:
        connection.app = app
        await connection.post(CHAT, long_request(), accept=ACCEPT[framing])
        yield connection


# --- HTTP -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ACCEPT)
async def test_generation_pauses_while_a_client_does_not_read_and_resumes_when_it_reads(framing: str):
    engine = FakeEngine()
    async with unread(engine, framing) as connection:
        await until(lambda: is_paused(engine))
        streams = connection.app.state.context.streams
        assert num_generated(engine) < LONG / 2
        assert streams.pending_bytes < 48 * 1024
        await connection.head()
        stream = b"".join(await connection.chunks())
    assert text_of_stream(stream) == text_of(engine.requests[0].prompt_token_ids, LONG)
    assert engine.aborted == []
    commands = [type(command) for command in engine.port.posted if isinstance(command, (Pause, Resume))]
    assert commands[:2] == [Pause, Resume]
    assert commands.count(Pause) == commands.count(Resume)


@pytest.mark.parametrize("framing", ACCEPT)
async def test_the_stall_timeout_resets_the_connection_and_aborts_the_request(framing: str, caplog):
    caplog.set_level("INFO", "quire.access")
    engine = FakeEngine()
    async with unread(engine, framing, stall_timeout=0.2) as connection:
        await until(lambda: engine.aborted)
        engine.step()
        assert engine.port.num_open == 0
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await connection.head()
            await connection.chunks()
        streams = connection.app.state.context.streams
        await until(lambda: streams.num_open == 0)
        assert streams.slow_readers["cut"] == 1
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [line["reason"] for line in lines] == ["client_stalled"]
    assert not any(record.exc_info for record in caplog.records)


async def test_a_client_that_reads_a_little_at_a_time_is_not_disconnected(monkeypatch):
    engine, next_look = FakeEngine(Script(answer=["so slowly " * 8] * LONG)), looks(monkeypatch, AckMonitor)
    async with unread(engine, stall_timeout=0.5) as connection:
        await connection.head()
        stream = b""
        for _ in range(3 * MIN_OBSERVATIONS):
            await next_look()
            stream += await connection.reader.read(2048)
        assert b"[DONE]" not in stream
        while b"\ndata: [DONE]\n" not in stream:
            piece = await asyncio.wait_for(connection.reader.read(65536), HANG_S)
            assert piece, f"disconnected after {len(stream)} bytes"
            stream += piece
    assert engine.aborted == []


@pytest.mark.parametrize("framing", ACCEPT)
async def test_generation_pauses_within_256_tokens_of_the_last_one_written_to_the_socket(framing: str, monkeypatch):
    written = []
    write = StreamResponse._write

    async def counted(self: StreamResponse, send: object, chunks: bytes, **options: bool) -> None:
        await write(self, send, chunks, **options)
        written.append(text_of_stream(chunks))

    monkeypatch.setattr(StreamResponse, "_write", counted)
    engine = FakeEngine()
    async with unread(engine, framing):
        await until(lambda: is_paused(engine))
        ids, text = engine.requests[0].prompt_token_ids, "".join(written)
        num_written = next(count for count in range(LONG) if len(text_of(ids, count)) >= len(text))
        assert text_of(ids, num_written) == text
        assert 192 <= num_generated(engine) - num_written <= 256


async def test_slow_reader_drop_ends_the_stream_with_an_error():
    engine = FakeEngine()
    app = await make_app(engine)
    async with serving(app) as url, connected(url, receive_buffer=4096) as connection:
        await connection.post(CHAT, long_request(stream_options={"slow_reader": "drop"}))
        await until(lambda: engine.aborted)
        await connection.head()
        last = b"".join(await connection.chunks()).strip().splitlines()[-1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "overloaded"


async def test_a_slow_client_does_not_delay_others():
    engine = FakeEngine()
    async with unread(engine) as slow:
        await until(lambda: is_paused(engine))
        url = "http://{}:{}".format(*slow.writer.get_extra_info("peername"))
        async with connected(url) as quick:
            await quick.post(CHAT, long_request())
            await quick.head()
            assert text_of_stream(b"".join(await quick.chunks())) == text_of(engine.requests[1].prompt_token_ids, LONG)
        await until(lambda: is_paused(engine))  # it resumed for a moment if the kernel accepted more bytes


# --- quire.v1 ---------------------------------------------------------------------------------------------------------


async def test_without_credit_256_tokens_are_sent_and_generation_pauses_192_later():
    engine = FakeEngine()
    async with open_chat(engine) as chat:
        await chat.start(max_tokens=LONG)
        frames = await chat.receive_until("paused")
        await until(lambda: is_paused(engine))
        frames += await frames_in_flight(chat)
        assert len(tokens(frames)) == 256
        assert 256 + 192 <= num_generated(engine) <= 256 + 192 + 8
        await chat.send(t="credit", id="a", upto=[LONG])
        frames += await chat.receive_until("done")
    assert text(frames) == text_of(engine.requests[0].prompt_token_ids, LONG)
    kinds = [frame["t"] for frame in frames if frame["t"] not in ("delta", "progress")]
    assert kinds == ["accepted", "paused", "resumed", "finish", "done"]


async def test_with_credit_for_one_token_exactly_one_is_sent():
    async with open_chat(FakeEngine()) as chat:
        await chat.send(t="start", id="a", request=body(max_tokens=20), credit=0)
        await chat.receive_until("accepted")
        for number in range(1, 21):
            await chat.send(t="credit", id="a", upto=[number])
            (delta,) = await chat.receive_until("delta")
            assert (delta["n"], delta["k"]) == (number, 1)
        await chat.receive_until("done")


async def test_credit_may_be_lost_duplicated_or_out_of_order():
    engine = FakeEngine()
    async with open_chat(engine) as chat:
        await chat.send(t="start", id="a", request=body(max_tokens=60, n=2), credit=5)
        for upto in ([20, 7], [20, 7], [9, 9], [0, 0], [9, 30], [40, 1], [60, 60]):
            await chat.send(t="credit", id="a", upto=upto)
        frames = await chat.receive_until("done")
    for choice in (0, 1):
        assert text(frames, choice=choice) == text_of(engine.requests[0].prompt_token_ids, 60, choice)


async def test_a_choice_gets_no_more_than_its_own_credit():
    async with open_chat(FakeEngine()) as chat:
        await chat.send(t="start", id="a", request=body(max_tokens=50, n=2), credit=0)
        await chat.receive_until("accepted")
        await chat.send(t="credit", id="a", upto=[10, 3])
        frames = await frames_in_flight(chat)
        assert [len(tokens(frames, choice)) for choice in (0, 1)] == [10, 3]


async def test_a_cancel_is_answered_without_credit():
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        await chat.send(t="start", id="a", request=body(max_tokens=50, n=2), credit=2)
        await chat.receive_until("accepted")
        engine.step(5)
        await frames_in_flight(chat)
        await chat.send(t="cancel", id="a")
        frames = await chat.receive_until("done")
    ends = [(frame["i"], frame["n"], frame["finish_reason"]) for frame in frames if frame["t"] == "finish"]
    assert sorted(ends) == [(0, 2, "cancelled"), (1, 2, "cancelled")]
    assert [frame["t"] for frame in frames if frame["t"] == "delta"] == []


async def test_a_stall_without_credit_closes_the_socket_with_4499():
    engine = FakeEngine()
    async with open_chat(engine, limits=ChatLimits(stall_timeout_s=0.1)) as chat:
        await chat.start(max_tokens=LONG)
        assert await chat.closed() == 4499
        assert len(engine.aborted) == 1
        assert chat.app.state.context.streams.slow_readers["cut"] == 1
        await until(lambda: chat.app.state.context.streams.num_open == 0)


async def test_a_client_that_keeps_granting_credit_is_not_disconnected(monkeypatch):
    engine, next_look = FakeEngine(), looks(monkeypatch, SocketStream)
    async with open_chat(engine, limits=ChatLimits(stall_timeout_s=0.5)) as chat:
        await chat.send(t="start", id="a", request=body(max_tokens=120), credit=0)
        await chat.receive_until("accepted")
        for number in range(4, 121, 4):
            await next_look()
            await chat.send(t="credit", id="a", upto=[number])
        await chat.receive_until("done")


async def test_a_socket_with_nothing_to_send_is_not_disconnected(monkeypatch):
    engine, next_look = FakeEngine(held=True), looks(monkeypatch, AckMonitor)
    async with open_chat(engine, limits=ChatLimits(stall_timeout_s=0.05)) as chat:
        await chat.start()
        await chat.receive_until("accepted")
        for _ in range(2 * MIN_OBSERVATIONS):
            await next_look()
        await chat.send(t="ping", ts=1)
        assert (await chat.receive())["t"] == "pong"


async def test_a_socket_that_reads_no_bytes_is_reset_after_the_stall_timeout():
    engine = FakeEngine(Script(answer=["x" * 4096] * 1000))
    async with open_chat(engine, stall_timeout=0.3) as chat:
        streams = chat.app.state.context.streams
        await chat.send(t="start", id="a", request=body(max_tokens=1000), credit=1000)
        chat.socket.transport.pause_reading()
        await until(lambda: engine.aborted)
        await until(lambda: streams.num_open == 0)
        assert streams.slow_readers["cut"] == 1
        chat.socket.transport.resume_reading()
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                await chat.receive()
        assert closed.value.rcvd is None  # no close frame was delivered


async def test_a_stream_with_much_pending_text_takes_turns_with_31_others():
    engine = FakeEngine(held=True)
    app = await make_app(engine)
    transport = StuckTransport(app)
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "websocket.send":
            sent.append(json.loads(str(message["text"])))
            if len(engine.requests) == 32:
                engine.step()  # every stream has a new token at once
            await asyncio.sleep(0)

    transport.websocket._send = send
    run = await transport.serve()
    transport.deliver(t="start", id="long", request=body(max_tokens=1000), credit=1000)
    for i in range(31):
        transport.deliver(t="start", id=f"s{i}", request=body(max_tokens=1000), credit=1000)
    await until(lambda: len({frame["id"] for frame in sent if frame["t"] == "delta"}) == 32)
    deltas = [frame["id"] for frame in sent if frame["t"] == "delta"]
    assert len(deltas) <= 2 * 32
    transport.messages.put_nowait({"type": "websocket.disconnect", "code": 1006})
    await asyncio.wait_for(run, 30)


async def test_a_blocked_writer_queues_no_frames_of_its_streams():
    engine = FakeEngine()
    transport = StuckTransport(await make_app(engine))
    run = await transport.serve()
    transport.deliver(t="start", id="a", request=body(max_tokens=LONG))
    await until(lambda: is_paused(engine))
    assert num_generated(engine) <= 200
    assert transport.chat._outbox.num_control <= 4
    transport.messages.put_nowait({"type": "websocket.disconnect", "code": 1006})
    await asyncio.wait_for(run, 30)


def tokens(frames: list[dict[str, object]], choice: int = 0) -> range:
    """The numbers of the tokens that were sent; they have no gaps."""
    count = sum(frame["k"] for frame in frames if frame["t"] == "delta" and frame["i"] == choice)
    return range(1, count + 1)


async def frames_in_flight(chat: ChatClient) -> list[dict[str, object]]:
    """All frames in flight: those before the answer to a later ping."""
    frames = []
    for ts in range(5):  # a pong goes before deltas, so that several rounds are needed for them to come
        await chat.send(t="ping", ts=ts)
        while (frame := await chat.receive())["t"] != "pong":
            frames.append(frame)
        await asyncio.sleep(0.01)
    return frames
