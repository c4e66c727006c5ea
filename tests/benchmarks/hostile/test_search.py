"""The search against a server that answers at once: what it sends, keeps and calls a fault."""

from __future__ import annotations

import os

import pytest

from benchmarks.hostile import search
from benchmarks.hostile.search import NUM_KEPT, Search, Tried
from benchmarks.server_process import ServerProcess
from tests.benchmarks.isolation.attack_server import REJECTED, AttackServer, attack_server

TOKENS = b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"tokens":[7]}'
FAILED = REJECTED.replace(b"400 Bad Request", b"500 Internal Server Error")


class ThisProcess:
    """The server is a part of the test."""

    pid = os.getpid()
    target = None

    def __init__(self, server: AttackServer) -> None:
        self.port = server.port

    client = ServerProcess.client


def search_of(server: AttackServer, num_requests: int = 30) -> Search:
    process = ThisProcess(server)
    process.target = search.local_target(server.port)
    return Search(process, "regex", num_requests, 1)


async def test_each_request_is_another_one_from_another_address():
    async with attack_server(REJECTED) as server:
        attacker = search_of(server)
        await attacker.attack(0.0)
        assert len(attacker.tried) == len(server.heads) == len(set(server.peers)) == 30
        assert len({head.partition(b"\r\n\r\n")[2] for head in server.heads}) > 15
        assert await attacker.end() == {"400": 30} and attacker.faults == []
        assert all(tried.seconds > 0 and tried.num_bytes > 1e6 for tried in attacker.tried)
        assert attacker.outcomes().num_rejected == 30 and sum(attacker.outcomes().reasons.values()) == 30


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (b'HTTP/1.1 400 Bad Request\r\ncontent-length: 29\r\n\r\n{"error":{"message":"It is"}}', "It is"),
        (b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}", "{}"),
        (b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", "status 400"),
        (TOKENS, ""),
        (b"HTTP/1.1 200 OK\r\n", "no answer"),
    ],
)
async def test_what_the_server_says_is_wrong_is_kept(response: bytes, error: str):
    async with attack_server(response) as server:
        attacker = search_of(server, 1)
        await attacker.attack(0.0)
        assert [tried.error for tried in attacker.tried] == [error]


async def test_the_letter_is_one_of_the_model():
    async with attack_server(TOKENS) as server:
        attacker = search_of(server)
        await attacker.until_ready()
        await attacker.attack(0.0)
        assert any(b'"logit_bias":{"7":100}' in head for head in server.heads)


@pytest.mark.parametrize(("response", "status"), [(FAILED, 500), (b"HTTP/1.1 200 OK\r\n", 0)])
async def test_an_answer_that_no_grammar_may_cause_is_a_fault(response: bytes, status: int):
    async with attack_server(response) as server:
        attacker = search_of(server, 3)
        await attacker.attack(0.0)
        assert len(attacker.faults) == 3
        assert all(fault.startswith(f"status {status} after ") and '"regex"' in fault for fault in attacker.faults)


@pytest.mark.long
async def test_the_costliest_are_changed_and_repeated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "NEW_PART", 0.0)
    async with attack_server(REJECTED) as server:
        attacker = search_of(server)
        attacker.tried = [Tried((number,) * 50, float(number), number, 400) for number in range(2 * NUM_KEPT)]
        assert [tried.seconds for tried in attacker.costliest()[:2]] == [2 * NUM_KEPT - 1, 2 * NUM_KEPT - 2]
        await attacker.attack(0.0)
        new = attacker.tried[2 * NUM_KEPT :]
        kept = {*range(NUM_KEPT, 2 * NUM_KEPT)}
        assert sum(bool(kept & set(tried.genes)) for tried in new) > 20
    await attacker.repeat_costliest()  # nobody answers any longer
