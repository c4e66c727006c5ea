"""quire.v1 on a real server: streams, cancels, disconnects, and every way a socket is rejected or closed."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.api.body import new_answer
from app.api.routes import websocket as websocket_module
from app.api.routes.websocket import ChatSocket
from app.config.settings import make_config
from app.contract.engine_status import EngineState
from app.contract.events import Usage
from app.contract.requests import Pause
from app.streaming.chat_actions import ChatLimits
from tests.api.chat_client import HELLO, ChatClient, StuckTransport, body, connect_socket, open_chat, socket_tasks, text
from tests.api.serving import HANG_S, make_app, serving, until
from tests.fakes import FakeEngine, Script, text_of, turn_loop

# --- Streams ----------------------------------------------------------------------------------------------------------


async def test_a_stream_has_its_frames_from_accepted_to_done():
    engine = FakeEngine()
    async with open_chat(engine) as chat:
        await chat.start(max_tokens=40)
        frames = await chat.receive_until("done")
    (request,) = engine.requests
    accepted = {"t": "accepted", "id": "a", "stream": request.id, "model": "guide", "ttl_s": 0, "n": 1, "after": [0]}
    assert frames[0] == {**accepted, "durable": False}
    assert text(frames) == text_of(request.prompt_token_ids, 40)
    assert frames[-2] == {"t": "finish", "id": "a", "i": 0, "n": 40, "finish_reason": "length"}
    assert frames[-1]["usage"]["completion_tokens"] == 40
    assert set(frames[-1]["timings"]) == {"queue_ms", "ttft_ms", "prefill_tok_s", "decode_tok_s", "itl_p50_ms"}
    assert engine.aborted == []


async def test_32_streams_on_one_socket_are_complete_and_separate():
    engine = FakeEngine()
    async with open_chat(engine) as chat:
        for i in range(32):
            await chat.start(f"s{i}", content=f"Question {i}", max_tokens=10 + i)
        frames = await chat.receive_until("done", count=32)
    by_length = {request.params.max_tokens: request.prompt_token_ids for request in engine.requests}
    for i in range(32):
        assert text(frames, f"s{i}") == text_of(by_length[10 + i], 10 + i)
        assert [frame["t"] for frame in frames if frame["id"] == f"s{i}"][-2:] == ["finish", "done"]


async def test_choices_are_numbered_separately_and_done_sums_them():
    engine = FakeEngine(Script(others=[["He", "llo"]], usage=Usage(0, 0, cached_tokens=2)))
    async with open_chat(engine) as chat:
        await chat.start(n=3, max_tokens=9)
        frames = await chat.receive_until("done")
    prompt = engine.requests[0].prompt_token_ids
    assert [text(frames, choice=i) for i in range(3)] == [text_of(prompt, 9), "Hello", text_of(prompt, 9, 2)]
    ends = [(frame["i"], frame["n"], frame["finish_reason"]) for frame in frames if frame["t"] == "finish"]
    assert ends == [(1, 2, "stop"), (0, 9, "length"), (2, 9, "length")]
    usage = frames[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), 20)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_a_cancel_ends_the_open_choices():
    engine = FakeEngine(Script(others=[["He"]]), held=True)
    async with open_chat(engine) as chat:
        await chat.start(n=3)
        await chat.receive_until("accepted")
        engine.step(2)
        await chat.receive_until("finish")
        await chat.send(t="cancel", id="a")
        frames = await chat.receive_until("done")
    ends = [(frame["i"], frame["n"], frame["finish_reason"]) for frame in frames if frame["t"] == "finish"]
    assert ends == [(0, 2, "cancelled"), (2, 2, "cancelled")]
    assert frames[-1]["usage"]["completion_tokens"] == 5


async def test_logprobs_are_sent_if_requested():
    async with open_chat(FakeEngine()) as chat:
        await chat.start(max_tokens=2, logprobs=True, top_logprobs=3)
        frames = await chat.receive_until("done")
    entries = [entry for frame in frames if frame["t"] == "delta" for entry in frame["lp"]]
    assert [len(entry["top_logprobs"]) for entry in entries] == [3, 3]


async def test_a_slow_reader_gets_the_same_text_in_fewer_frames():
    pieces = [chr(ord("a") + i % 26) * 4096 for i in range(256)]
    engine = FakeEngine(Script(answer=pieces))
    async with open_chat(engine) as chat:
        await chat.start(max_tokens=256, stream_options={"slow_reader": "coalesce"})
        await until(lambda: any(isinstance(command, Pause) for command in engine.port.posted))
        frames = await chat.receive_until("done")
    assert text(frames) == "".join(pieces)
    assert len([frame for frame in frames if frame["t"] == "delta"]) < 256


async def test_an_id_can_be_reused_after_done():
    async with open_chat(FakeEngine()) as chat:
        for _ in range(3):
            await chat.start(max_tokens=2)
            assert (await chat.receive_until("done", "error"))[-1]["t"] == "done"


async def test_the_server_answers_pings_while_streams_are_silent():
    async with open_chat(FakeEngine(held=True)) as chat:
        await chat.start()
        await chat.receive_until("accepted")
        await chat.send(t="ping", ts=7)
        assert await chat.receive() == {"t": "pong", "ts": 7}


async def test_the_server_pings_at_its_heartbeat_interval():
    async with open_chat(FakeEngine(), limits=ChatLimits(heartbeat_ms=5)) as chat, asyncio.timeout(HANG_S):
        for _ in range(3):
            assert json.loads(await chat.socket.recv())["t"] == "ping"


# --- Ends -------------------------------------------------------------------------------------------------------------


async def test_cancel_is_answered_by_finish_and_done():
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        await chat.start()
        await chat.receive_until("accepted")
        engine.step(3)
        await chat.send(t="cancel", id="a")
        await chat.send(t="cancel", id="a")
        frames = await chat.receive_until("done")
        await chat.send(t="cancel", id="a")
        await chat.send(t="ping")
        assert (await chat.receive())["t"] == "pong"
    assert frames[-2]["finish_reason"] == "cancelled"
    assert frames[-2]["n"] == frames[-1]["usage"]["completion_tokens"]
    assert len(engine.aborted) == 1
    assert engine.port.num_open == 0


async def test_a_cancel_before_the_acceptance_ends_the_stream():
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        await chat.start()
        await chat.send(t="cancel", id="a")
        frames = await chat.receive_until("done")
    assert [frame["t"] for frame in frames if frame["t"] != "delta"] == ["accepted", "finish", "done"]
    assert frames[-2]["finish_reason"] == "cancelled"
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("way", ["close", "reset"])
async def test_a_disconnect_aborts_every_stream_within_a_step(way: str):
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        for i in range(5):
            await chat.start(f"s{i}")
        await chat.receive_until("accepted", count=5)
        engine.step(2)
        if way == "close":
            await chat.socket.close()
        else:
            chat.socket.transport.abort()
        await until(lambda: len(engine.aborted) == 5)
        engine.step()
        assert engine.port.num_open == 0
        await until(lambda: socket_tasks() == [])


async def test_a_failed_stream_ends_with_an_error_and_the_socket_stays():
    engine = FakeEngine(Script(fail_after=2))
    async with open_chat(engine) as chat:
        await chat.start(max_tokens=9)
        frames = await chat.receive_until("error", "done")
        assert (frames[-1]["id"], frames[-1]["code"], frames[-1]["status"]) == ("a", "engine_error", 500)
        assert text(frames) == text_of(engine.requests[0].prompt_token_ids, 2)
        await chat.start(max_tokens=2)
        assert (await chat.receive_until("error", "done"))[-1]["t"] == "done"


class Panic(BaseException):
    """A panic of a native library, which is not an `Exception`."""


@pytest.mark.parametrize("kind", [ZeroDivisionError, Panic])
async def test_an_internal_error_ends_only_its_stream(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: Any
):
    async def broken(*args: Any, **options: Any) -> None:
        raise kind("secret")

    async with open_chat(FakeEngine()) as chat:
        monkeypatch.setattr(new_answer, "parse_answer", broken)
        await chat.start()
        error = await chat.receive()
        assert (error["id"], error["code"]) == ("a", "engine_error")
        assert "secret" not in error["message"]
        monkeypatch.undo()
        await chat.start(max_tokens=1)
        assert (await chat.receive_until("error", "done"))[-1]["t"] == "done"
    assert "internal error" in caplog.text


@pytest.mark.parametrize(
    ("request_body", "status", "code", "param"),
    [
        ({}, 400, "invalid_value", "messages"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        (body(temperature=9), 400, "invalid_value", "temperature"),
        (body(model="other"), 404, "model_not_found", "model"),
        (body(max_tokens=10**6), 400, "context_length_exceeded", "max_tokens"),
        (body(n=2, best_of=1), 400, "invalid_value", "best_of"),
        (body(cache_salt=""), 400, "invalid_value", "cache_salt"),
        (body(prompt_logprobs=1), 400, "unsupported_parameter", "prompt_logprobs"),
    ],
)
async def test_a_bad_request_is_an_error_frame_and_affects_no_other_stream(
    request_body: dict[str, Any], status: int, code: str, param: str
):
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        await chat.start("good", max_tokens=3)
        await chat.receive_until("accepted")
        await chat.send(t="start", id="bad", request=request_body)
        error = await chat.receive()
        assert {name: error[name] for name in ("t", "id", "status", "code", "param")} == {
            "t": "error", "id": "bad", "status": status, "code": code, "param": param,
        }  # fmt: skip
        engine.release()
        assert (await chat.receive_until("done"))[-1]["id"] == "good"


async def test_loading_and_overload_are_error_frames():
    engine = FakeEngine(config=make_config({"max_num_seqs": 1, "max_queue": 0}), held=True)
    async with open_chat(engine) as chat:
        await chat.start("running")
        await chat.receive_until("accepted")
        await chat.start("more")
        error = await chat.receive()
        assert (error["id"], error["code"], error["status"]) == ("more", "overloaded", 503)
        engine.port.state = EngineState.LOADING
        await chat.start("more")
        assert (await chat.receive())["code"] == "model_loading"


# --- Rejections and closes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [None, "same", "https://friend.example"])
async def test_own_and_allowed_origins_can_connect(origin: str | None):
    app = await make_app(allowed_origins=["https://friend.example"])
    async with serving(app) as url, connect_socket(url, origin=url if origin == "same" else origin) as socket:
        assert socket.subprotocol == "quire.v1"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "ftp://localhost", ""])
async def test_other_origins_are_rejected_before_accept(origin: str):
    async with serving(await make_app()) as url:
        with pytest.raises(InvalidStatus) as rejected:
            await connect_socket(url, additional_headers={"Origin": origin})
    assert rejected.value.response.status_code == 403
    assert json.loads(rejected.value.response.body)["error"]["code"] == "permission_denied"


async def test_a_draining_server_rejects_sockets_before_accept():
    engine = FakeEngine()
    async with serving(await make_app(engine)) as url:
        await engine.drain(1)
        with pytest.raises(InvalidStatus) as rejected:
            await connect_socket(url)
    assert rejected.value.response.status_code == 503
    assert json.loads(rejected.value.response.body)["error"]["code"] == "draining"


@pytest.mark.parametrize("subprotocols", [None, ["quire.v2"]])
async def test_an_unknown_subprotocol_is_closed(subprotocols: list[str] | None):
    async with serving(await make_app()) as url, connect_socket(url, subprotocols=subprotocols) as socket:
        assert await ChatClient(socket).closed() == 4406


@pytest.mark.parametrize("subprotocols", [["quire.v1"], []])
async def test_a_disconnect_before_the_accept_raises_nothing(subprotocols: list[str]):
    async def gone(message: dict[str, Any]) -> None:
        raise OSError

    async def connect() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "headers": [], "app": await make_app(), "subprotocols": subprotocols}
    await websocket_module.websocket_endpoint(WebSocket(scope, connect, gone))


@pytest.mark.parametrize("header", [{"Authorization": "Bearer k2"}, {"x-api-key": "k1"}])
async def test_a_key_in_a_header_authorizes_the_socket(header: dict[str, str]):
    async with (
        serving(await make_app(api_key=["k1", "k2"])) as url,
        connect_socket(url, additional_headers=header) as socket,
    ):
        await ChatClient(socket).send(**HELLO)
        assert (await ChatClient(socket).receive())["t"] == "welcome"


async def test_a_wrong_key_in_a_header_is_rejected_before_accept():
    async with serving(await make_app(api_key=["k1"])) as url:
        with pytest.raises(InvalidStatus) as rejected:
            await connect_socket(url, additional_headers={"Authorization": "Bearer no"})
    assert rejected.value.response.status_code == 401
    assert json.loads(rejected.value.response.body)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(("key", "is_right"), [({"key": "k1"}, True), ({"key": "no"}, False), ({}, False)])
async def test_a_key_in_hello_is_checked(key: dict[str, str], is_right: bool):
    async with open_chat(FakeEngine(), greet=False, api_key=["k1"]) as chat:
        await chat.send(**HELLO, **key)
        if is_right:
            assert (await chat.receive())["t"] == "welcome"
        else:
            assert await chat.closed() == 4401


@pytest.mark.parametrize("where", ["header", "hello", "both"])
async def test_streams_have_the_tenant_of_their_socket(where: str):
    """The key of the header counts; that of `hello` only if the header has none."""
    engine = FakeEngine()
    header = {"x-api-key": "k2"} if where != "hello" else {}
    hello = {"header": {}, "hello": {"key": "k2"}, "both": {"key": "k1"}}[where]
    app = await make_app(engine, api_key=["k1", "k2"])
    async with serving(app) as url, connect_socket(url, additional_headers=header) as socket:
        chat = ChatClient(socket)
        await chat.send(**HELLO, **hello)
        assert (await chat.receive())["t"] == "welcome"
        await chat.start(max_tokens=1)
        await chat.receive_until("done")
    assert [request.tenant for request in engine.requests] == ["key-2"]


async def test_a_socket_without_hello_is_closed():
    async with open_chat(FakeEngine(), greet=False, limits=ChatLimits(hello_timeout_s=0.01)) as chat:
        assert await chat.closed() == 4408


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([b"\x00"], 1003),
        (["not json"], 4400),
        (['{"t":"nonsense"}'] * 10, 1008),
        (['{"t":"pong"}'] * 2000, 4429),
        (['{"t":"ping"}'] * 500, 4429),
        ([json.dumps({"t": "start", "id": "held", "request": body()})], 4409),
    ],
    ids=["binary", "malformed", "bad frames", "messages", "pings", "duplicate id"],
)
async def test_a_protocol_violation_closes_the_socket_and_aborts_its_streams(messages: list[str | bytes], code: int):
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        await chat.start("held")
        await chat.receive_until("accepted")
        with contextlib.suppress(ConnectionClosed):
            for message in messages:
                await chat.socket.send(message)
        assert await chat.closed() == code
        await until(lambda: len(engine.aborted) == 1)
        await until(lambda: socket_tasks() == [])


@pytest.mark.parametrize("ending", ["unread replies", "close", "disconnect"])
async def test_a_client_that_reads_nothing_cannot_keep_the_socket_open(ending: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket_module, "CLOSE_TIMEOUT_S", 0.01)
    engine = FakeEngine()
    app = await make_app(engine)
    transport = StuckTransport(app)
    transport.messages.put_nowait({"type": "websocket.connect"})
    await transport.websocket.accept()
    limits = ChatLimits(messages_per_s=1e6, messages_burst=1e6, pings_per_s=1e6)
    run = asyncio.create_task(ChatSocket(transport.websocket, app.state.context, limits).run())
    transport.deliver(**HELLO)
    transport.deliver(t="start", id="a", request=body(max_tokens=1000))
    await until(lambda: engine.requests)
    await turn_loop()
    if ending == "unread replies":
        for _ in range(websocket_module.MAX_UNREAD_REPLIES + 10):
            transport.deliver(t="ping")
    elif ending == "close":
        transport.messages.put_nowait({"type": "websocket.receive", "bytes": b""})
    else:
        transport.messages.put_nowait({"type": "websocket.disconnect", "code": 1006})
    async with asyncio.timeout(HANG_S):
        await run
    await until(lambda: engine.port.num_open == 0)
    assert socket_tasks() == []
