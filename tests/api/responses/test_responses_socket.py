"""The WebSocket of responses on a real server: its responses, what it remembers, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import openai
import pytest
from starlette.applications import Starlette
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.api.responses import responses_socket
from app.api.responses.responses_protocol import MAX_WAITING, Create
from app.api.responses.responses_socket import ResponsesSocket
from app.config.settings import make_config
from app.contract.requests import Pause
from app.streaming.chat_actions import ChatLimits
from tests.api.responses.answered import DONE, check_stream, text_of, typed
from tests.api.serving import HANG_S, make_app, serving, until
from tests.fakes import FakeEngine, Script

PATH = "/v1/responses"
ANSWER = Script(["Warm", "."])


class ResponsesClient:
    """A connection that sends frames and reads responses."""

    def __init__(self, socket: ClientConnection, app: Starlette) -> None:
        self.socket = socket
        self.app = app

    async def create(self, text: Any = "Hi", **fields: Any) -> None:
        """Ask for a response."""
        await self.socket.send(json.dumps({"type": "response.create", "input": text, **fields}))

    async def receive(self) -> dict[str, Any]:
        """Read a frame."""
        async with asyncio.timeout(HANG_S):
            found: dict[str, Any] = json.loads(await self.socket.recv())
            return found

    async def response(self) -> list[dict[str, Any]]:
        """Read the frames of a response, or the error instead."""
        frames = [await self.receive()]
        while frames[-1]["type"] not in {*DONE, "error"}:
            frames.append(await self.receive())
        return frames

    async def ask(self, text: Any = "Hi", **fields: Any) -> dict[str, Any]:
        """Ask for a response and return it, or the error instead."""
        await self.create(text, **fields)
        frames = await self.response()
        return frames[-1] if frames[-1]["type"] == "error" else check_stream(frames)

    async def closed(self) -> int | None:
        """Read to the end of the connection and return its close code."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.receive()
        return self.socket.close_code


@asynccontextmanager
async def opened(
    engine: FakeEngine, key: str | None = None, headers: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[ResponsesClient]:
    """A connection to a server of its own."""
    app = await make_app(engine, **settings)
    own = {**(headers or {}), **({} if key is None else {"authorization": f"Bearer {key}"})}
    async with serving(app) as url:
        address = url.replace("http", "ws") + PATH
        async with connect(address, compression=None, proxy=None, max_size=None, additional_headers=own) as socket:
            yield ResponsesClient(socket, app)


def prompt_of(engine: FakeEngine, app: Starlette, number: int = -1) -> str:
    """The prompt of a request, as text."""
    tokenizer = app.state.context.text.tokenizer
    return str(tokenizer.decode(engine.requests[number].prompt_token_ids))


async def test_a_response_has_the_events_of_a_stream():
    async with opened(FakeEngine(ANSWER)) as client:
        await client.create()
        frames = await client.response()
    final = check_stream(frames)
    for frame in frames:
        typed(frame)
    assert text_of(final["output"][0]) == "Warm."
    assert all("stream_id" not in frame for frame in frames)


async def test_the_next_response_goes_on_from_the_last_one_though_nothing_is_stored():
    engine = FakeEngine(ANSWER)
    async with opened(engine) as client:
        first = await client.ask("How is it?", store=False)
        second = await client.ask("And now?", store=False, previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        by_id = engine.requests[-1].prompt_token_ids
        whole = [{"role": "user", "content": "How is it?"}, *first["output"], {"role": "user", "content": "And now?"}]
        await client.ask(whole)
        assert engine.requests[-1].prompt_token_ids == by_id
        third = await client.ask("So?", previous_response_id=second["id"])
        assert third["status"] == "completed"
    assert by_id[: len(engine.requests[0].prompt_token_ids) - 1] == engine.requests[0].prompt_token_ids[:-1]


async def test_a_prompt_can_be_computed_before_the_question():
    """As Codex does: first its instructions alone, then what the user says."""
    engine = FakeEngine(ANSWER)
    async with opened(engine) as client:
        developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}
        prepared = await client.ask([developer], generate=False, store=False)
        assert (prepared["status"], prepared["output"]) == ("completed", [])
        assert prepared["usage"]["output_tokens"] == 0
        assert engine.requests[0].is_prompt_only
        answered = await client.ask("How is it?", store=False, previous_response_id=prepared["id"])
        assert answered["output"] and not engine.requests[1].is_prompt_only
        await client.ask([developer, {"role": "user", "content": "How is it?"}])
        assert engine.requests[2].prompt_token_ids == engine.requests[1].prompt_token_ids


async def test_another_connection_knows_nothing_of_it():
    engine = FakeEngine(ANSWER)
    async with opened(engine) as client:
        first = await client.ask(store=False)
        async with connect(
            f"ws://127.0.0.1:{client.socket.remote_address[1]}{PATH}", compression=None, proxy=None
        ) as socket:
            error = await ResponsesClient(socket, client.app).ask(previous_response_id=first["id"])
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        assert error["error"]["param"] == "previous_response_id"
        assert client.app.state.context.remembered.num_bytes > 0
        await client.socket.close()
        await until(lambda: client.app.state.context.remembered.num_bytes == 0)


async def test_responses_come_one_after_another_each_with_its_name():
    engine = FakeEngine(ANSWER, held=True)
    async with opened(engine) as client:
        for name in ("a", "b", "c"):
            await client.create(stream_id=name)
        await until(lambda: engine.requests)
        engine.release()
        responses = [await client.response() for _ in range(3)]
    assert [{frame["stream_id"] for frame in frames} for frames in responses] == [{"a"}, {"b"}, {"c"}]
    assert all(check_stream(frames)["status"] == "completed" for frames in responses)
    assert len(engine.requests) == 3


async def test_one_more_than_may_wait_is_an_error():
    engine = FakeEngine(ANSWER, held=True)
    async with opened(engine) as client:
        for number in range(MAX_WAITING + 2):
            await client.create(stream_id=str(number))
        error = await client.receive()
        assert (error["error"]["code"], error["stream_id"]) == ("rate_limit_exceeded", str(MAX_WAITING + 1))
        engine.release()
        for _ in range(MAX_WAITING + 1):
            check_stream(await client.response())


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"temperature": 9}, 400, "invalid_value", "temperature"),
        ({"background": True}, 400, "unsupported_parameter", "background"),
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"input": []}, 400, "invalid_value", "input"),
    ],
)
async def test_what_cannot_begin_is_an_error_and_the_socket_stays(fields, status, code, param):
    async with opened(FakeEngine(ANSWER)) as client:
        error = await client.ask(**{"text": "Hi", **fields} if "input" not in fields else {"text": fields["input"]})
        assert (error["status"], error["error"]["code"], error["error"]["param"]) == (status, code, param)
        assert (await client.ask())["status"] == "completed"


async def test_a_failure_before_the_first_token_is_an_error_and_behind_it_the_last_event():
    for fail_after, kind in ((0, "error"), (1, "response.failed")):
        async with opened(FakeEngine(Script(fail_after=fail_after))) as client:
            await client.create()
            frames = await client.response()
            assert frames[-1]["type"] == kind
            assert len(frames) == 1 or check_stream(frames)["error"]["quire_code"] == "engine_error"


async def test_a_full_queue_is_an_error_with_its_status():
    engine = FakeEngine(config=make_config({"max_num_seqs": 1, "max_queue": 0}), held=True)
    async with opened(engine) as client:
        await client.create()
        await until(lambda: engine.requests)
        async with connect(
            f"ws://127.0.0.1:{client.socket.remote_address[1]}{PATH}", compression=None, proxy=None
        ) as socket:
            error = await ResponsesClient(socket, client.app).ask()
        assert (error["status"], error["error"]["code"]) == (503, "overloaded")
        assert int(error["error"]["headers"]["retry-after"]) >= 1


@pytest.mark.parametrize("way", ["close", "reset"])
async def test_a_disconnect_aborts_the_response(way):
    engine = FakeEngine(held=True)
    async with opened(engine) as client:
        await client.create()
        await client.create()
        await until(lambda: engine.requests)
        engine.step()
        assert (await client.receive())["type"] == "response.created"
        if way == "close":
            await client.socket.close()
        else:
            client.socket.transport.abort()
        await until(lambda: len(engine.aborted) == 1)
        engine.step()
        assert engine.port.num_open == 0 and len(engine.requests) == 1


async def test_a_key_is_needed_in_the_headers():
    for headers, status in (({}, 401), ({"authorization": "Bearer no"}, 401)):
        with pytest.raises(InvalidStatus) as refused:
            async with opened(FakeEngine(), headers=headers, api_key=["k1"]):
                pass
        assert refused.value.response.status_code == status
    engine = FakeEngine(ANSWER)
    async with opened(engine, key="k1", api_key=["k1"]) as client:
        await client.ask()
    assert [request.tenant for request in engine.requests] == ["key-1"]


async def test_other_origins_are_refused():
    with pytest.raises(InvalidStatus) as refused:
        async with opened(FakeEngine(), headers={"origin": "http://evil.example"}):
            pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    ("messages", "code"), [([b"{}"], 1003), (["{"] * 10, 1008), (['{"type":"response.processed"}'] * 2000, 4429)]
)
async def test_a_violation_closes_the_socket_and_aborts_the_response(messages, code):
    engine = FakeEngine(held=True)
    async with opened(engine) as client:
        await client.create()
        await until(lambda: engine.requests)
        with contextlib.suppress(ConnectionClosed):
            for message in messages:
                await client.socket.send(message)
        assert await client.closed() == code
        await until(lambda: len(engine.aborted) == 1)


async def test_an_internal_error_is_told_before_the_close(monkeypatch, caplog):
    def broken(self, text):
        raise ZeroDivisionError("secret")

    async with opened(FakeEngine()) as client:
        monkeypatch.setattr("app.api.responses.responses_protocol.ResponsesProtocol.receive", broken)
        error = await client.ask()
        assert error["error"]["code"] == "engine_error" and "secret" not in error["error"]["message"]
        assert await client.closed() == 1011
    assert "internal error" in caplog.text


async def test_a_drain_lets_the_response_end_and_closes_then():
    engine = FakeEngine(ANSWER, held=True)
    async with opened(engine) as client:
        await client.create()
        await until(lambda: engine.requests)
        drain = asyncio.create_task(client.app.state.context.drain.run(HANG_S))
        await asyncio.sleep(0)
        engine.release()
        assert check_stream(await client.response())["status"] == "completed"
        assert await client.closed() == 1012
        await drain


async def test_the_client_of_openai_asks_twice_over_one_connection():
    engine = FakeEngine(ANSWER)
    app = await make_app(engine)
    async with (
        serving(app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
        client.responses.connect() as connection,
    ):
        previous: dict[str, Any] = {}
        for _ in range(2):
            await connection.response.create(model="guide", input="How is it?", store=False, **previous)
            async with asyncio.timeout(HANG_S):
                async for event in connection:
                    if event.type == "response.completed":
                        assert event.response.output_text == "Warm."
                        previous = {"previous_response_id": event.response.id}
                        break
                    assert event.type != "error"
    assert len(engine.requests) == 2


class StuckTransport:
    """An ASGI connection whose `send` never returns: a client that reads nothing, with every buffer full."""

    def __init__(self, app: Starlette) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {"type": "websocket", "headers": [], "app": app, "state": {}, "path": PATH}
        self.websocket = WebSocket(scope, self.messages.get, self.send)

    async def serve(self, limits: ChatLimits) -> asyncio.Task[None]:
        """Accept the connection; return the task that serves it."""
        self.deliver({"type": "websocket.connect"})
        await self.websocket.accept()
        socket = ResponsesSocket(self.websocket, self.websocket.app.state.context, limits)
        return asyncio.create_task(socket.run())

    async def send(self, message: dict[str, Any]) -> None:
        """Take the accept, and nothing else."""
        if message["type"] != "websocket.accept":
            await asyncio.Event().wait()

    def deliver(self, message: dict[str, Any]) -> None:
        """Let the server receive a message."""
        self.messages.put_nowait(message)

    def frame(self, **fields: Any) -> None:
        """Let the server receive a frame."""
        self.deliver({"type": "websocket.receive", "text": json.dumps(fields)})


LIMITS = ChatLimits(messages_per_s=1e6, messages_burst=1e6)


@pytest.mark.parametrize("ending", ["unread replies", "close", "disconnect"])
async def test_a_client_that_reads_nothing_cannot_keep_the_socket_open(ending, monkeypatch):
    monkeypatch.setattr(responses_socket, "CLOSE_TIMEOUT_S", 0.01)
    engine = FakeEngine()
    transport = StuckTransport(await make_app(engine))
    run = await transport.serve(LIMITS)
    transport.frame(type="response.create", input="Hi", max_output_tokens=1000)
    await until(lambda: engine.requests)
    if ending == "unread replies":
        for _ in range(responses_socket.MAX_UNREAD_REPLIES + 10):
            transport.frame(type="response.steer")
    elif ending == "close":
        transport.deliver({"type": "websocket.receive", "bytes": b""})
    else:
        transport.deliver({"type": "websocket.disconnect", "code": 1006})
    async with asyncio.timeout(HANG_S):
        await run
    await until(lambda: engine.port.num_open == 0)


async def test_generation_pauses_while_the_client_does_not_read():
    engine = FakeEngine(Script(answer=["x" * 4096] * 256))
    transport = StuckTransport(await make_app(engine))
    run = await transport.serve(LIMITS)
    transport.frame(type="response.create", input="Hi")
    await until(lambda: any(isinstance(command, Pause) for command in engine.port.posted))
    transport.deliver({"type": "websocket.disconnect", "code": 1006})
    await run
    assert len(engine.aborted) == 1


async def test_a_response_that_is_answered_holds_no_copy_of_its_frame():
    """Frames can be as large as bodies, and a client may have hundreds of connections."""
    engine = FakeEngine(ANSWER, held=True)
    async with opened(engine) as client:
        await client.create(x=(marked := f"frame {id(engine)}"))
        await until(lambda: engine.requests)
        gc.collect()
        held = [each for each in gc.get_objects() if isinstance(each, Create) and marked.encode() in each.body]
        calls = [each for each in gc.get_objects() if isinstance(each, partial) and each.args]
        assert [*held, *(each for each in calls if marked in repr(each.args[0]))] == []
        engine.release()
        await client.response()
