"""Kept responses in the journal: the next process has them, goes on with them, and has nothing of deleted ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.streaming.kept import journaling
from tests.api.responses.answered import check_stream, events_in
from tests.api.responses.kept.kept_client import PATH, events_of
from tests.api.serving import until
from tests.journal.killed_journal import killed
from tests.regressions.running_server import RunningServer, StepGate, run_server

GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


async def create(server: RunningServer, given: Any = "Hi", **fields: Any) -> dict[str, Any]:
    """A response."""
    body = {"input": given, "max_output_tokens": 12, **GREEDY, **fields}
    answer = await server.client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def get(server: RunningServer, response_id: str, **query: Any) -> httpx.Response:
    """A kept response."""
    return await server.client.get(f"{PATH}/{response_id}", params=query)


async def test_the_next_process_has_the_same_responses_and_conversations_go_on(journal: str):
    async with run_server(journal=journal) as server:
        first = await create(server, instructions="Be brief.", metadata={"a": "b"})
        second = await create(server, "And?", previous_response_id=first["id"])
        streams = [(await get(server, one["id"], stream="true")).content for one in (first, second)]
        items = (await server.client.get(f"{PATH}/{second['id']}/input_items")).content
        expected = await create(server, "Now?", previous_response_id=second["id"], store=False)
    async with run_server(journal=journal) as server:
        for one, stream in zip((first, second), streams, strict=True):
            assert (await get(server, one["id"])).json() == one
            events = events_of(stream)
            assert (await get(server, one["id"], stream="true")).content == stream
            assert (await get(server, one["id"], stream="true", starting_after=4)).content == b"".join(events[5:])
        assert (await server.client.get(f"{PATH}/{second['id']}/input_items")).content == items
        third = await create(server, "Now?", previous_response_id=second["id"])
    assert texts_of(third) == texts_of(expected)
    assert third["usage"]["input_tokens"] == expected["usage"]["input_tokens"]


def texts_of(response: dict[str, Any]) -> list[str]:
    """The texts of a response."""
    return [part["text"] for item in response["output"] for part in item["content"]]


@pytest.mark.parametrize("background", [True, False])
async def test_what_a_killed_process_was_making_goes_on_with_the_same_events(journal: str, background: bool):
    gate = StepGate()
    fields = {"input": "Hi", "max_output_tokens": 40, "stream": True, "background": background, **GREEDY}
    had = b""
    async with run_server(gate, journal=journal) as server:
        gate.allow(9)
        async with server.client.stream("POST", PATH, json=fields) as response:
            async for piece in response.aiter_bytes():
                had += piece
                if had.count(b"\n\n") >= 8:
                    break
            left = killed(journal)
            gate.allow()
    had = had[: had.rindex(b"\n\n") + 2]
    events = events_of(had)
    response_id = json.loads(events[0].split(b"data: ")[1])["response"]["id"]
    async with run_server(journal=left) as server:
        rest = await get(server, response_id, stream="true", starting_after=len(events) - 1)
        whole = await get(server, response_id, stream="true")
        ended = (await get(server, response_id)).json()
        again = await create(server, max_output_tokens=40)
    assert whole.content == had + rest.content
    final = events_in(whole.content)[-1]["response"]
    assert final == ended and ended["background"] is background
    if not background:
        check_stream(events_in(whole.content))
    assert texts_of(ended) == texts_of(again)


async def test_a_response_that_other_kernels_go_on_with_says_so(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        gate.allow(9)
        response_id = (await create(server, background=True, max_output_tokens=40))["id"]
        async with server.client.stream("GET", f"{PATH}/{response_id}", params={"stream": "true"}) as response:
            assert "x-quire-recovered" not in response.headers
            await anext(line async for line in response.aiter_lines() if "output_text.delta" in line)
        left = killed(journal)
        gate.allow()
    async with run_server(journal=left, enforce_eager=True) as server:
        for query in ({}, {"stream": "true"}):
            assert (await get(server, response_id, **query)).headers["x-quire-recovered"] == "1"


async def test_a_response_is_told_again_whose_conversation_was_deleted(journal: str):
    async with run_server(journal=journal) as server:
        first = await create(server)
        second = await create(server, "And?", previous_response_id=first["id"])
        await server.client.delete(f"{PATH}/{first['id']}")
    async with run_server(journal=journal) as server:
        assert (await get(server, first["id"])).status_code == 404
        assert (await get(server, second["id"])).json() == second
        body = {"input": "Now?", "previous_response_id": second["id"]}
        assert (await server.client.post(PATH, json=body)).status_code == 400


async def test_a_cancelled_response_stays_cancelled(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        gate.allow(5)
        body = await create(server, background=True, max_output_tokens=40)
        await server.wait_for_step(4)
        cancelling = await server.client.post(f"{PATH}/{body['id']}/cancel")
        left = killed(journal)
        gate.allow()
    assert cancelling.json()["status"] == "cancelled"
    async with run_server(journal=left) as server:
        assert (await get(server, body["id"])).json() == cancelling.json()


def num_secrets(folder: Path) -> int:
    """How often the question is in the files."""
    return sum(each.read_bytes().count(b"a-secret-question") for each in folder.iterdir())


async def test_a_deleted_response_is_in_no_byte_of_the_files(
    journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journaling, "FORGET_S", 0.01)

    async with run_server(journal=journal) as server:
        body = await create(server, "a-secret-question", metadata={"a": "a-secret-question"})
        assert num_secrets(tmp_path) > 0
        await server.client.delete(f"{PATH}/{body['id']}")
        await until(lambda: not num_secrets(tmp_path))
    async with run_server(journal=journal) as server:
        assert (await get(server, body["id"])).status_code == 404


async def test_what_is_not_stored_is_not_recorded(journal: str, tmp_path: Path):
    async with run_server(journal=journal) as server:
        await create(server, "a-secret-question", store=False)
        assert num_secrets(tmp_path) == 0


async def test_a_response_belongs_to_its_key_in_the_next_process_too(journal: str):
    keys = [{"authorization": f"Bearer {name}"} for name in ("one", "two")]
    body = {"input": "Hi", "max_output_tokens": 4}
    async with run_server(journal=journal, api_key=("one", "two")) as server:
        response_id = (await server.client.post(PATH, json=body, headers=keys[0])).json()["id"]
    async with run_server(journal=journal, api_key=("two", "one")) as server:
        found = [await server.client.get(f"{PATH}/{response_id}", headers=each) for each in keys]
    assert [each.status_code for each in found] == [200, 404]
