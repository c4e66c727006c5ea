"""Responses of a WebSocket that are kept: read, listed and gone on from over HTTP and on other connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from app.contract.errors import Draining
from app.streaming.kept.live_stream import LiveStream, State
from tests.api.responses.answered import DONE, check_stream, events_in, without_logprobs
from tests.api.responses.kept.kept_client import CALL, LOGPROBS, PATH, TOOLS, begun, script
from tests.api.responses.test_responses_socket import ResponsesClient
from tests.api.serving import HANG_S, make_app, serving, until
from tests.fakes import FakeEngine, Script
from tests.journal.killed_journal import killed
from tests.regressions.running_server import StepGate, run_server

ANSWER = Script(["Warm", "."])


class Both:
    """A client of one server over HTTP and over WebSockets."""

    def __init__(self, url: str, app: Any, http: httpx.AsyncClient) -> None:
        self.app, self.http, self._url = app, http, url

    @asynccontextmanager
    async def socket(self, key: str | None = None) -> AsyncIterator[ResponsesClient]:
        """A connection of its own."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        address = self._url.replace("http", "ws") + PATH
        async with connect(address, compression=None, proxy=None, additional_headers=headers) as socket:
            yield ResponsesClient(socket, self.app)

    async def get(self, response_id: str, **query: Any) -> httpx.Response:
        """A kept response."""
        return await self.http.get(f"{PATH}/{response_id}", params=query)

    async def create(self, given: Any, **fields: Any) -> dict[str, Any]:
        """A response over HTTP."""
        answer = await self.http.post(PATH, json={"input": given, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body


@asynccontextmanager
async def both(engine: FakeEngine, **settings: Any) -> AsyncIterator[Both]:
    """A client of a server of its own."""
    app = await make_app(engine, **{"reasoning_parser": "think", **settings})
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        yield Both(url, app, http)


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}, LOGPROBS, {"max_output_tokens": 3}, {"store": True}])
async def test_a_response_of_a_socket_is_read_over_http_with_the_same_events(fields):
    async with both(FakeEngine(script())) as client, client.socket() as socket:
        await socket.create(**fields)
        frames = await socket.response()
        response = frames[-1]["response"]
        body = (await client.get(response["id"])).json()
        events = events_in((await client.get(response["id"], stream="true")).content)
        items = (await client.http.get(f"{PATH}/{response['id']}/input_items")).json()
    assert response["store"] is True
    assert events[:-1] == frames[:-1]
    assert check_stream(events) == body
    assert body | {"output": without_logprobs(body["output"])} == response, "a frame has none at the end"
    assert [item["content"][0]["text"] for item in items["data"]] == ["Hi"]


async def test_a_conversation_goes_on_from_a_socket_over_http_to_another_socket():
    engine = FakeEngine(script(f"So.\n{CALL}"))
    async with both(engine) as client:
        async with client.socket() as socket:
            first = await socket.ask("One.", tools=TOOLS)
            second = await socket.ask("Two.", tools=TOOLS, previous_response_id=first["id"])
        third = await client.create("Three.", tools=TOOLS, previous_response_id=second["id"])
        async with client.socket() as socket:
            fourth = await socket.ask("Four.", tools=TOOLS, previous_response_id=third["id"])
            await socket.ask("Five.", tools=TOOLS, previous_response_id=fourth["id"])
            prompt = engine.requests[-1].prompt_token_ids
            whole: list[Any] = []
            for text, response in zip(("One.", "Two.", "Three.", "Four."), (first, second, third, fourth), strict=True):
                whole += [{"role": "user", "content": text}, *response["output"]]
            await socket.ask([*whole, {"role": "user", "content": "Five."}], tools=TOOLS, store=False)
    assert engine.requests[-1].prompt_token_ids == prompt


async def test_what_is_not_stored_or_has_no_output_is_remembered_alone():
    async with both(FakeEngine(ANSWER)) as client, client.socket() as socket:
        for fields in ({"store": False}, {"generate": False}, {"generate": False, "store": True}):
            response = await socket.ask(**fields)
            assert response["store"] is False
            assert (await client.get(response["id"])).status_code == 404
            after = await socket.ask("And?", previous_response_id=response["id"])
            assert after["store"] is True and (await client.get(after["id"])).json() == after
            body = {"input": "And?", "previous_response_id": after["id"]}
            error = (await client.http.post(PATH, json=body)).json()["error"]
            assert error["code"] == "previous_response_not_found", "what it goes on from is known to its socket alone"
            assert (await socket.ask("Now?", previous_response_id=after["id"]))["status"] == "completed"


async def test_without_memory_a_response_is_answered_and_says_that_it_is_not_stored():
    async with both(FakeEngine(ANSWER), response_ttl=0) as client, client.socket() as socket:
        response = await socket.ask()
        assert response["store"] is False and (await client.get(response["id"])).status_code == 404
        assert (await socket.ask("And?", previous_response_id=response["id"]))["status"] == "completed"


async def test_another_key_does_not_go_on_from_it():
    async with both(FakeEngine(ANSWER), api_key=["k1", "k2"]) as client:
        async with client.socket("k1") as socket:
            response = await socket.ask()
        async with client.socket("k2") as socket:
            error = await socket.ask("And?", previous_response_id=response["id"])
            assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        async with client.socket("k1") as socket:
            assert (await socket.ask("And?", previous_response_id=response["id"]))["status"] == "completed"


async def test_going_on_from_a_response_keeps_it():
    async with both(FakeEngine(ANSWER)) as client, client.socket() as socket:
        kept = client.app.state.context.kept
        first = await socket.ask()
        other = await socket.ask()
        second = await socket.ask("And?", previous_response_id=first["id"])
        assert [*kept._idle] == [other["id"], second["id"]]


async def test_a_socket_that_closes_ends_its_response():
    engine = FakeEngine(script(), held=True)
    async with both(engine) as client:
        async with client.socket() as socket:
            await socket.create()
            await until(lambda: engine.requests)
            engine.step(3)
            await socket.receive()
        stream = client.app.state.context.kept.find(engine.requests[0].id, None)
        await until(lambda: stream.is_over)
        assert stream.state is State.CANCELLED
        assert (await client.get(stream.id)).json()["status"] == "cancelled"
        assert engine.aborted == [stream.id]


async def test_a_delete_over_http_ends_the_response_of_a_socket_as_that_of_a_stream():
    engine = FakeEngine(script(), held=True)
    async with both(engine) as client, client.socket() as socket:
        await socket.create()
        await until(lambda: engine.requests)
        engine.step(5)
        created = await socket.receive()
        answer = await client.http.delete(f"{PATH}/{created['response']['id']}")
        assert answer.json()["deleted"] is True
        engine.step(1)
        *_, last = await socket.response()
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        assert last["response"]["usage"] is None
        engine.release()
        assert (await socket.ask())["status"] == "completed", "the socket stays"


async def test_a_failure_is_the_last_event_and_kept():
    async with both(FakeEngine(Script(fail_after=2))) as client, client.socket() as socket:
        await socket.create()
        *_, last = await socket.response()
        assert last["type"] == "response.failed"
        assert (await client.get(last["response"]["id"])).json() == last["response"]


GREEDY = {"temperature": 0, "ignore_eos": True, "max_output_tokens": 40}


async def test_the_next_process_has_and_goes_on_with_the_responses_of_a_socket(tmp_path: Path):
    journal, gate = str(tmp_path / "journal"), StepGate()
    async with run_server(gate, journal=journal) as server:
        gate.allow(200)
        client = Both(server.url, None, server.client)
        async with client.socket() as socket:
            first = await socket.ask(**GREEDY)
            gate.hold()
            gate.allow(9)
            await socket.create("And?", previous_response_id=first["id"], **GREEDY)
            frames = [await socket.receive() for _ in range(6)]
            left = killed(journal)
            gate.allow()
    second_id = frames[0]["response"]["id"]
    async with run_server(journal=left) as server:
        client = Both(server.url, None, server.client)
        assert (await client.get(first["id"])).json() == first
        events = events_in((await client.get(second_id, stream="true")).content)
        assert events[: len(frames)] == frames
        assert check_stream(events)["previous_response_id"] == first["id"]
        async with client.socket() as socket:
            third = await socket.ask("Now?", previous_response_id=second_id, **GREEDY)
    assert third["status"] == "incomplete"


class Durable:
    """A recorder of streams that outlive the process."""

    def is_durable(self, stream: LiveStream) -> bool:
        """Yes."""
        return True


async def test_a_response_that_goes_on_in_the_next_process_has_no_end_and_its_socket_is_closed():
    engine = FakeEngine(script(), held=True)
    async with both(engine) as client, client.socket() as socket:
        await socket.create()
        await until(lambda: engine.requests)
        engine.step(5)
        frames = [await socket.receive()]
        stream = client.app.state.context.kept.find(engine.requests[0].id, None)
        stream.recorder = Durable()
        stream.stop(Draining("The server ends.").info())
        drain = begun(client.app.state.context.drain.run(HANG_S))
        with suppress(ConnectionClosed):
            while True:
                frames.append(await socket.receive())
        assert socket.socket.close_code == 1012
        assert len(frames) > 2 and not DONE & {frame["type"] for frame in frames}
        assert (stream.state, stream.readers, engine.aborted) == (State.RUNNING, {}, [])
        # It lets the request run to the deadline, as every one; this one has no recorder that takes more of it.
        drain.cancel()
