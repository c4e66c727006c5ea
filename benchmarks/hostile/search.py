"""The search: requests are made and sent, and changed where they took the server longest or most memory."""

from __future__ import annotations

import asyncio
import heapq
import ipaddress
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from benchmarks.api_client import ApiClient, Body
from benchmarks.hostile.genes import Genes, changed
from benchmarks.hostile.outcomes import Outcomes, outcomes
from benchmarks.hostile.sources import request
from benchmarks.isolation.memory import resident_of_tree
from benchmarks.server_process import ServerProcess, local_target

NUM_ATTACKERS = 3
NEW_PART = 0.3
"""Of the requests: made of new genes only."""
NUM_KEPT = 12
"""The parents of the next ones: so many by time, and so many by memory."""
TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.02
ADDRESSES = ipaddress.ip_network("127.64.0.0/10")  # each request comes from another one: each has a new account
CHAT = "/v1/chat/completions"


class Tried(NamedTuple):
    """One request: its genes, the seconds until its answer was complete, and the server's memory meanwhile.

    Attributes:
        num_bytes: the most, of the server and its children; of requests at the same time all.
        status: of HTTP; 0 where there was no answer.
        error: what the server says is wrong; empty where nothing is.
    """

    genes: tuple[int, ...]
    seconds: float
    num_bytes: int
    status: int
    error: str = ""


class Search:
    """Sends `num_requests` in one language, NUM_ATTACKERS at a time: an attacker of `isolation.row`.

    Attributes:
        tried: what was sent so far.
        faults: what no grammar may cause, as sentences with the request.
    """

    def __init__(self, server: ServerProcess, language: str, num_requests: int, seed: int) -> None:
        self.tried: list[Tried] = []
        self.faults: list[str] = []
        self._server, self._language, self._letter_id = server, language, 0
        self._num_left = num_requests
        self._random = random.Random(seed)
        self._addresses = iter(ADDRESSES.hosts())

    async def until_ready(self) -> None:
        """Ask which token is a letter."""
        answer = await self._server.client(TIMEOUT_S).post("/tokenize", {"content": "zz"})
        self._letter_id = orjson.loads(answer.content)["tokens"][-1]

    async def attack(self, seconds: float) -> None:
        """Send all, however long it takes."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_ATTACKERS):
                tasks.create_task(self._attack())

    async def end(self) -> dict[str, int]:
        """Return how many answers had which status."""
        return dict(Counter(str(tried.status) for tried in self.tried))

    async def repeat_costliest(self) -> None:
        """Send the costliest ones for ever, from accounts that have sent nothing, until they are not answered."""
        async with asyncio.TaskGroup() as tasks:
            for tried in self.costliest()[:NUM_ATTACKERS]:
                tasks.create_task(self._repeat(tried.genes))

    def costliest(self) -> Sequence[Tried]:
        """Return those that took longest, the longest first."""
        return heapq.nlargest(NUM_KEPT, self.tried, key=lambda tried: tried.seconds)

    def outcomes(self) -> Outcomes:
        """Return what became of the grammars."""
        return outcomes(tried.error for tried in self.tried)

    async def _attack(self) -> None:
        while self._num_left:
            self._num_left -= 1
            genes = Genes(self._next_genes(), self._random)
            fields = request(self._language, genes, self._letter_id)
            seconds, num_bytes, answer = await self._send(fields)
            status, error = (0, "no answer") if answer is None else (answer.status, _error(answer))
            self.tried.append(Tried(tuple(genes.taken), seconds, num_bytes, status, error))
            if status not in (200, 400, 429):
                self.faults.append(f"status {status} after {seconds:.1f} s: {orjson.dumps(fields)[:2000].decode()}")

    async def _repeat(self, numbers: Sequence[int]) -> None:
        fields = request(self._language, Genes(numbers, self._random), self._letter_id)
        while (await self._send(fields))[-1] is not None:
            pass

    def _next_genes(self) -> Sequence[int]:
        """Return the genes of one of the costliest, changed; or none."""
        if len(self.tried) < NUM_KEPT or self._random.random() < NEW_PART:
            return ()
        largest = heapq.nlargest(NUM_KEPT, self.tried, key=lambda tried: tried.num_bytes)
        parents = [*self.costliest(), *largest]
        return changed(self._random.choice(parents).genes, self._random.choice(parents).genes, self._random)

    async def _send(self, fields: dict[str, Any]) -> tuple[float, int, Body | None]:
        """Return the seconds until the answer, the most memory meanwhile, and the answer, if there was one."""
        client = ApiClient(local_target(self._server.port, source=str(next(self._addresses))), TIMEOUT_S)
        began, num_bytes = time.perf_counter(), 0
        sending = asyncio.create_task(client.post(CHAT, fields))
        while not sending.done():
            num_bytes = max(num_bytes, resident_of_tree(self._server.pid))
            await asyncio.wait([sending], timeout=LOOK_EVERY_S)
        answer = None
        with suppress(OSError, EOFError, TimeoutError):
            answer = sending.result()
        return time.perf_counter() - began, num_bytes, answer if answer is not None and answer.status else None


def _error(answer: Body) -> str:
    """Return what an answer says is wrong, as OpenAI's errors do, or what there is; empty of a good one."""
    if answer.status == 200:
        return ""
    try:
        return str(orjson.loads(answer.content)["error"]["message"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return answer.content.decode(errors="replace") or f"status {answer.status}"
