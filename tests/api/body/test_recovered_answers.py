"""Answers that go on where other tokens might come than before the restart: their readers are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.engine.execute.cpu.backend import EagerBackend
from tests.api.body.test_answer_journal import position_of, told_upto, unfinished, until_over
from tests.api.chat_client import HELLO, ChatClient, connect_socket
from tests.journal.killed_journal import killed
from tests.regressions.running_server import RunningServer, StepGate, run_server

OTHER_KERNELS = {"enforce_eager": True}


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


async def is_marked(server: RunningServer, path: str) -> bool:
    """Whether readers are told, over HTTP and over quire.v1."""
    head = await server.client.head(path)
    assert head.status_code == 200
    async with connect_socket(server.url) as socket:
        client = ChatClient(socket)
        await client.send(**HELLO)
        await client.send(t="resume", id="a", stream=path.rpartition("/")[2], after=[0])
        *_, accepted = await client.receive_until("accepted")
    assert ("x-quire-recovered" in head.headers) == ("recovered" in accepted)
    return accepted.get("recovered", False)


async def test_other_kernels_are_told_and_what_they_have_told_stays_marked(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        path = await unfinished(server, gate)
        assert not await is_marked(server, path)
        left = killed(journal)
    gate = StepGate()
    async with run_server(gate, journal=left, **OTHER_KERNELS) as server:
        assert await is_marked(server, path)
        position = await position_of(server, path)
        gate.allow(3)
        await told_upto(server, path, position + 1)
        left = killed(left)
    async with run_server(journal=left) as server:  # with the first ones again
        await until_over(server, path)
        assert await is_marked(server, path)
    async with run_server(journal=left) as server:
        assert await is_marked(server, path)


async def test_the_same_kernels_are_not_told(journal: str):
    gate = StepGate()
    async with run_server(gate, journal=journal) as server:
        path = await unfinished(server, gate)
        left = killed(journal)
    async with run_server(journal=left) as server:
        await until_over(server, path)
        assert not await is_marked(server, path)


async def test_kernels_that_choose_other_tokens_each_time_are_told(journal: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(EagerBackend, "kernels", None)
    gate = StepGate()
    async with run_server(gate, journal=journal, **OTHER_KERNELS) as server:
        path = await unfinished(server, gate)
        left = killed(journal)
    async with run_server(journal=left, **OTHER_KERNELS) as server:
        assert await is_marked(server, path)
