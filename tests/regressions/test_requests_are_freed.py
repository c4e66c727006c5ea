"""Nothing of a request stays after it, also without a collection of cycles: its prompt may have megabytes.

Python collects cycles rarely in a server that does little; until then a cycle around a request keeps its prompt.
"""

from __future__ import annotations

import errno
import gc
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.api.body.parse_embeddings import EmbeddingsBody
from app.api.body.schemas import ChatBody, CompletionBody
from app.api.wire.api_request import ApiRequest
from app.api.wire.socket_stream import SocketStream
from app.contract.requests import EngineRequest
from app.streaming.flow.mailbox import Mailbox
from app.streaming.kept.polling_reader import PollingReader
from app.streaming.kept.waiting_reader import WaitingReader
from app.streaming.session import Session
from tests.api.chat_client import HELLO, ChatClient, body, connect_socket
from tests.api.serving import connected, make_app, serving, until
from tests.fakes import FakeEngine
from tests.regressions.running_server import RunningServer, StepGate, run_server
from tests.regressions.test_abort_leaks import connect_to, hang_up

KINDS = frozenset([EngineRequest, Session, Mailbox, SocketStream, ApiRequest, ChatBody, CompletionBody, EmbeddingsBody])
LONG = list(range(50, 150))
EMBEDDINGS = "/v1/embeddings"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "a b c"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]}


def under(schema: object) -> dict[str, Any]:
    """The body of a chat whose answer must satisfy a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return {"messages": MESSAGES, "max_tokens": 200, "response_format": form}


ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": LONG, "max_tokens": 200}),
    "several choices": ("/v1/completions", {"prompt": LONG, "max_tokens": 200, "n": 3, "temperature": 1}),
    "best of": ("/v1/completions", {"prompt": LONG, "max_tokens": 200, "n": 1, "best_of": 3, "temperature": 1}),
    "beams": ("/v1/completions", {"prompt": LONG, "max_tokens": 200, "n": 2, "use_beam_search": True}),
    "several prompts": ("/v1/completions", {"prompt": [LONG, LONG[::-1]], "max_tokens": 200}),
    "chat": (CHAT, {"messages": MESSAGES, "max_tokens": 200}),
    "schema": (CHAT, under(SCHEMA)),
    "tools": (
        CHAT,
        {
            "messages": MESSAGES,
            "max_tokens": 40,
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}],
            "tool_choice": "required",
        },
    ),
    "embeddings": (EMBEDDINGS, {"input": [LONG, LONG[::-1]]}),
}
REFUSED: dict[str, tuple[int, str, dict[str, Any]]] = {
    "field": (400, "/v1/completions", {"prompt": LONG, "temperature": -1}),
    "too long": (400, "/v1/completions", {"prompt": LONG * 100}),
    "schema": (400, CHAT, under({"type": "string", "pattern": "(?=a)"})),
    "tools": (400, CHAT, {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "a b"}}]}),
    "messages": (400, CHAT, {"messages": [{"role": "nobody", "content": "a b c"}]}),
    "input": (400, EMBEDDINGS, {"input": LONG * 100}),
    "model": (404, "/v1/completions", {"prompt": LONG, "model": "other"}),
    "model of a schema": (404, CHAT, {**under(SCHEMA), "model": "other"}),
}
STREAMED = [name for name, (path, body) in ANSWERS.items() if path != EMBEDDINGS and "best_of" not in body]


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    """Collect no cycles while a test runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def kept() -> Callable[[], list[str]]:
    """A function that returns the requests and streams that exist now, and not before the test."""
    before = [each for each in gc.get_objects() if type(each) in KINDS]
    known = {id(each) for each in before}

    def find() -> list[str]:
        assert before is not None  # kept, so that no new object gets the id of an old one
        return [repr(each)[:100] for each in gc.get_objects() if type(each) in KINDS and id(each) not in known]

    return find


async def until_freed(server: RunningServer, kept: Callable[[], list[str]]) -> None:
    """Wait until no request exists: the engine lets go of the newest one with the steps of a small one after it."""
    await server.wait_until_idle()
    assert (await server.complete(prompt="x", max_tokens=4)).status_code == 200
    await server.wait_until_idle()
    try:
        await until(lambda: not kept())
    except TimeoutError:
        raise AssertionError(f"cycles keep {kept()}") from None


async def test_answered_requests_are_freed(kept: Callable[[], list[str]]):
    async with run_server() as server:
        for path, body in ANSWERS.values():
            response = await server.client.post(path, json=body)
            assert response.status_code == 200, response.text
        await until_freed(server, kept)


async def test_streamed_requests_are_freed(kept: Callable[[], list[str]]):
    async with run_server() as server:
        for path, body in map(ANSWERS.__getitem__, STREAMED):
            assert await server.streamed(path, **body)
        await until_freed(server, kept)


async def test_requests_over_a_websocket_are_freed(kept: Callable[[], list[str]]):
    async with run_server() as server, connect_socket(server.url) as websocket:
        client = ChatClient(websocket)
        await client.send(**HELLO)
        await client.start("answered", max_tokens=20)
        await client.receive_until("done")
        await client.start("cancelled", max_tokens=200)
        await client.receive_until("delta")
        await client.send(t="cancel", id="cancelled")
        await client.receive_until("done")
        await until_freed(server, kept)


async def test_readers_that_have_left_a_kept_answer_are_freed():
    def readers() -> list[object]:
        return [each for each in gc.get_objects() if type(each) in (PollingReader, SocketStream, WaitingReader)]

    engine = FakeEngine(held=True)
    app = await make_app(engine)
    async with serving(app) as url, connect_socket(url) as websocket:
        client = ChatClient(websocket)
        await client.send(**HELLO)
        await client.send(t="start", id="first", request=body(max_tokens=9), ttl_s=300)
        (accepted,) = (await client.receive_until("accepted"))[-1:]
        engine.step(2)
        await client.send(t="detach", id="first")
        for number in range(9):
            await client.send(t="resume", id=f"r{number}", stream=accepted["stream"], after=[number % 2])
            await client.receive_until("accepted")
            async with connected(url) as connection:
                connection.writer.write(f"GET /v1/streams/{accepted['stream']} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                await connection.head()
            await client.send(t="detach", id=f"r{number}")
        await until(lambda: not readers())
        assert app.state.context.kept.find(accepted["stream"], None).readers == {}
        engine.release()


@pytest.mark.parametrize("stream", [False, True])
async def test_refused_requests_are_freed(stream: bool, kept: Callable[[], list[str]]):
    async with run_server() as server:
        for status, path, body in REFUSED.values():
            response = await server.client.post(path, json=body if path == EMBEDDINGS else {**body, "stream": stream})
            assert response.status_code == status, response.text
        await until_freed(server, kept)


async def test_requests_refused_because_others_are_not_read_are_freed(kept: Callable[[], list[str]]):
    async with run_server(max_paused_per_account=1) as server, connect_socket(server.url) as websocket:
        client = ChatClient(websocket)
        await client.send(**HELLO)
        await client.send(t="start", id="unread", request=body(max_tokens=400, ignore_eos=True), credit=0)
        await client.receive_until("paused")
        for path, fields in ANSWERS.values():
            response = await server.client.post(path, json=fields)
            assert response.status_code == 429, response.text
        await client.start("refused", max_tokens=200)
        await client.receive_until("error")
        await client.send(t="cancel", id="unread")
        await client.receive_until("done")
        await until_freed(server, kept)


async def test_requests_whose_grammar_the_system_lacks_room_to_try_are_freed(
    kept: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with run_server() as server:
        monkeypatch.setattr(socket, "socketpair", fail)
        for name in ("schema", "tools"):
            path, body = ANSWERS[name]
            response = await server.client.post(path, json=body)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert "Too many open files" in response.json()["error"]["message"]
        monkeypatch.undo()
        await until_freed(server, kept)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_requests_whose_clients_left_are_freed(how: str, kept: Callable[[], list[str]]):
    gate = StepGate()
    async with run_server(gate) as server:
        for name, (path, body) in ANSWERS.items():
            connection = await connect_to(server)
            await connection.post(path, {**body, "stream": True} if name in STREAMED else body)
            await until(lambda: server.num_open)
            gate.allow(2)
            await hang_up(connection, how)
            gate.allow()
            await server.wait_until_idle()
            gate.hold()
        gate.allow()
        await until_freed(server, kept)
