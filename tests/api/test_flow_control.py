"""A client that reads slowly costs only itself: generation waits for it, nothing is lost, nobody waits for ever."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.exceptions import ConnectionClosed

from app.api.stream_response import StreamResponse
from app.config.settings import make_config
from app.contract.requests import Pause, Resume
from app.observe.log import JsonFormatter
from app.streaming.chat_protocol import ChatLimits
from tests.api.serving import SLOW, Connection, connected, make_app, serving, until
from tests.api.talk import StuckTransport, Talk, body, talking, text
from tests.fakes import FakeEngine, Script, text_of

CHAT = "/v1/chat/completions"
LONG = 1900
ACCEPT = {"sse": "text/event-stream", "ndjson": "application/x-ndjson"}


def asked(**fields: object) -> dict[str, object]:
    return {**body(), "stream": True, "max_tokens": LONG, **fields}


def said(stream: bytes) -> str:
    """The text of a stream in either framing."""
    lines = [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith((b"data: {", b"{"))]
    chunks = [json.loads(line) for line in lines]
    assert not any("error" in chunk for chunk in chunks)
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


def num_generated(engine: FakeEngine, index: int = 0) -> int:
    """How many tokens the fake engine has made for a request that is open."""
    return engine.port._works[engine.requests[index].id].num_tokens


def is_paused(engine: FakeEngine, index: int = 0) -> bool:
    work = engine.port._works.get(engine.requests[index].id) if len(engine.requests) > index else None
    return work is not None and work.is_paused


@asynccontextmanager
async def unread(engine: FakeEngine, framing: str = "sse", **settings: object) -> AsyncIterator[Connection]:
    """A connection that has asked for a long answer, and of which nothing is read."""
    app = await make_app(engine, make_config(settings), SLOW)
    async with serving(app) as url, connected(url, receive_buffer=4096) as connection:
        connection.app = app
        await connection.post(CHAT, asked(), accept=ACCEPT[framing])
        yield connection


# --- HTTP -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ACCEPT)
async def test_generation_stops_for_a_client_that_never_reads_and_goes_on_when_it_does(framing: str):
    engine = FakeEngine()
    async with unread(engine, framing) as connection:
        await until(lambda: is_paused(engine))
        streams = connection.app.state.context.streams
        assert num_generated(engine) < LONG / 2
        assert streams.pending_bytes < 48 * 1024
        await connection.head()
        stream = b"".join(await connection.chunks())
    assert said(stream) == text_of(engine.requests[0].prompt_token_ids, LONG)
    assert engine.aborted == []
    commands = [type(command) for command in engine.port.posted if isinstance(command, (Pause, Resume))]
    assert commands[:2] == [Pause, Resume]
    assert commands.count(Pause) == commands.count(Resume)


@pytest.mark.parametrize("framing", ACCEPT)
async def test_past_the_stall_timeout_the_connection_is_reset_and_the_request_aborted(framing: str, caplog):
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


async def test_a_client_that_takes_a_little_now_and_then_is_not_cut():
    engine = FakeEngine()
    async with unread(engine, stall_timeout=0.5) as connection:
        await connection.head()
        stream = b""
        while b"\ndata: [DONE]\n" not in stream:
            await asyncio.sleep(0.005)
            stream += await connection.reader.read(2048)
    assert engine.aborted == []


@pytest.mark.parametrize("framing", ACCEPT)
async def test_generation_stops_within_256_tokens_of_the_last_one_handed_to_the_socket(framing: str, monkeypatch):
    handed = []
    write = StreamResponse._write

    async def counted(self: StreamResponse, send: object, chunks: bytes, **options: bool) -> None:
        await write(self, send, chunks, **options)
        handed.append(said(chunks))

    monkeypatch.setattr(StreamResponse, "_write", counted)
    engine = FakeEngine()
    async with unread(engine, framing):
        await until(lambda: is_paused(engine))
        ids, text = engine.requests[0].prompt_token_ids, "".join(handed)
        num_handed = next(count for count in range(LONG) if len(text_of(ids, count)) >= len(text))
        assert text_of(ids, num_handed) == text
        assert 192 <= num_generated(engine) - num_handed <= 256


async def test_dropping_ends_the_stream_with_an_error():
    engine = FakeEngine()
    app = await make_app(engine)
    async with serving(app) as url, connected(url, receive_buffer=4096) as connection:
        await connection.post(CHAT, asked(stream_options={"slow_reader": "drop"}))
        await until(lambda: engine.aborted)
        await connection.head()
        last = b"".join(await connection.chunks()).strip().splitlines()[-1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "overloaded"


async def test_one_slow_client_does_not_hold_the_others_up():
    engine = FakeEngine()
    async with unread(engine) as slow:
        await until(lambda: is_paused(engine))
        url = "http://{}:{}".format(*slow.writer.get_extra_info("peername"))
        async with connected(url) as quick:
            await quick.post(CHAT, asked())
            await quick.head()
            assert said(b"".join(await quick.chunks())) == text_of(engine.requests[1].prompt_token_ids, LONG)
        await until(lambda: is_paused(engine))  # it went on for a moment if the kernel took some more


# --- quire.v1 ---------------------------------------------------------------------------------------------------------


async def test_without_credit_a_window_of_256_tokens_is_sent_and_generation_stops_192_later():
    engine = FakeEngine()
    async with talking(engine) as talk:
        await talk.start(max_tokens=LONG)
        frames = await talk.hear_until("paused")
        await until(lambda: is_paused(engine))
        frames += await last_deltas(talk)
        assert len(tokens(frames)) == 256
        assert 256 + 192 <= num_generated(engine) <= 256 + 192 + 8
        await talk.say(t="credit", id="a", upto=[LONG])
        frames += await talk.hear_until("done")
    assert text(frames) == text_of(engine.requests[0].prompt_token_ids, LONG)
    kinds = [frame["t"] for frame in frames if frame["t"] not in ("delta", "progress")]
    assert kinds == ["accepted", "paused", "resumed", "finish", "done"]


async def test_credit_of_one_is_strict_lock_step():
    async with talking(FakeEngine()) as talk:
        await talk.say(t="start", id="a", request=body(max_tokens=20), credit=0)
        await talk.hear_until("accepted")
        for number in range(1, 21):
            await talk.say(t="credit", id="a", upto=[number])
            (delta,) = await talk.hear_until("delta")
            assert (delta["n"], delta["k"]) == (number, 1)
        await talk.hear_until("done")


async def test_credit_may_be_lost_doubled_and_out_of_order():
    engine = FakeEngine()
    async with talking(engine) as talk:
        await talk.say(t="start", id="a", request=body(max_tokens=60, n=2), credit=5)
        for upto in ([20, 7], [20, 7], [9, 9], [0, 0], [9, 30], [40, 1], [60, 60]):
            await talk.say(t="credit", id="a", upto=upto)
        frames = await talk.hear_until("done")
    for choice in (0, 1):
        assert text(frames, choice=choice) == text_of(engine.requests[0].prompt_token_ids, 60, choice)


async def test_no_choice_gets_more_than_its_own_credit():
    async with talking(FakeEngine()) as talk:
        await talk.say(t="start", id="a", request=body(max_tokens=50, n=2), credit=0)
        await talk.hear_until("accepted")
        await talk.say(t="credit", id="a", upto=[10, 3])
        frames = await last_deltas(talk)
        assert [len(tokens(frames, choice)) for choice in (0, 1)] == [10, 3]


async def test_a_cancel_is_answered_although_there_is_no_credit():
    engine = FakeEngine(held=True)
    async with talking(engine) as talk:
        await talk.say(t="start", id="a", request=body(max_tokens=50, n=2), credit=2)
        await talk.hear_until("accepted")
        engine.step(5)
        await last_deltas(talk)
        await talk.say(t="cancel", id="a")
        frames = await talk.hear_until("done")
    ends = [(frame["i"], frame["n"], frame["finish_reason"]) for frame in frames if frame["t"] == "finish"]
    assert sorted(ends) == [(0, 2, "cancelled"), (1, 2, "cancelled")]
    assert [frame["t"] for frame in frames if frame["t"] == "delta"] == []


async def test_without_credit_for_the_stall_timeout_the_socket_is_closed_with_4499():
    engine = FakeEngine()
    async with talking(engine, limits=ChatLimits(stall_timeout_s=0.1)) as talk:
        await talk.start(max_tokens=LONG)
        assert await talk.closed() == 4499
        assert len(engine.aborted) == 1
        assert talk.app.state.context.streams.slow_readers["cut"] == 1
        await until(lambda: talk.app.state.context.streams.num_open == 0)


async def test_a_client_that_gives_credit_all_the_time_is_not_cut():
    engine = FakeEngine()
    async with talking(engine, limits=ChatLimits(stall_timeout_s=0.2)) as talk:
        await talk.say(t="start", id="a", request=body(max_tokens=60), credit=0)
        await talk.hear_until("accepted")
        for number in range(4, 61, 4):
            await asyncio.sleep(0.04)
            await talk.say(t="credit", id="a", upto=[number])
        await talk.hear_until("done")


async def test_a_quiet_socket_is_not_cut():
    engine = FakeEngine(held=True)
    async with talking(engine, limits=ChatLimits(stall_timeout_s=0.05)) as talk:
        await talk.start()
        await talk.hear_until("accepted")
        await asyncio.sleep(0.2)
        await talk.say(t="ping", ts=1)
        assert (await talk.hear())["t"] == "pong"


async def test_a_socket_that_takes_no_bytes_is_reset_after_the_stall_timeout():
    engine = FakeEngine(Script(answer=["x" * 4096] * 1000))
    async with talking(engine, stall_timeout=0.3) as talk:
        streams = talk.app.state.context.streams
        await talk.say(t="start", id="a", request=body(max_tokens=1000), credit=1000)
        talk.socket.transport.pause_reading()
        await until(lambda: engine.aborted)
        await until(lambda: streams.num_open == 0)
        assert streams.slow_readers["cut"] == 1
        talk.socket.transport.resume_reading()
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                await talk.hear()
        assert closed.value.rcvd is None  # no goodbye got through


async def test_a_long_stream_that_always_has_more_to_say_lets_31_short_ones_have_their_turns():
    engine = FakeEngine(held=True)
    app = await make_app(engine)
    transport = StuckTransport(app)
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "websocket.send":
            sent.append(json.loads(str(message["text"])))
            if len(engine.requests) == 32:
                engine.step()  # whoever speaks has something new at once
            await asyncio.sleep(0)

    transport.websocket._send = send
    run = await transport.conversing()
    transport.say(t="start", id="long", request=body(max_tokens=1000), credit=1000)
    for i in range(31):
        transport.say(t="start", id=f"s{i}", request=body(max_tokens=1000), credit=1000)
    await until(lambda: len({frame["id"] for frame in sent if frame["t"] == "delta"}) == 32)
    deltas = [frame["id"] for frame in sent if frame["t"] == "delta"]
    assert len(deltas) <= 2 * 32
    transport.messages.put_nowait({"type": "websocket.disconnect", "code": 1006})
    await asyncio.wait_for(run, 30)


async def test_a_writer_that_is_stuck_holds_no_frames_of_its_streams():
    engine = FakeEngine()
    transport = StuckTransport(await make_app(engine))
    run = await transport.conversing()
    transport.say(t="start", id="a", request=body(max_tokens=LONG))
    await until(lambda: is_paused(engine))
    assert num_generated(engine) <= 200
    assert transport.chat._outbox.num_control <= 4
    transport.messages.put_nowait({"type": "websocket.disconnect", "code": 1006})
    await asyncio.wait_for(run, 30)


def tokens(frames: list[dict[str, object]], choice: int = 0) -> range:
    """The numbers of the tokens that were sent, which have no gaps."""
    count = sum(frame["k"] for frame in frames if frame["t"] == "delta" and frame["i"] == choice)
    return range(1, count + 1)


async def last_deltas(talk: Talk) -> list[dict[str, object]]:
    """What is on its way: all frames up to the answer to a ping that comes after it."""
    frames = []
    for ts in range(5):  # a pong goes before deltas, so that several rounds are needed for them to come
        await talk.say(t="ping", ts=ts)
        while (frame := await talk.hear())["t"] != "pong":
            frames.append(frame)
        await asyncio.sleep(0.01)
    return frames
