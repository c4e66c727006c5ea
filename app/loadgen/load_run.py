"""One load at one rate: requests are sent when they are due, whatever the server does.

Where `max_concurrency` is reached, the next request waits for a place; that is told apart from being late.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Iterable

from app.loadgen.answer import Answer
from app.loadgen.load import Request
from app.loadgen.load_client import Client


class Run:
    """Sends requests and keeps what becomes of them.

    Attributes:
        answers: one for each request that was sent, in order; those that have not ended are `open`.
        num_open: requests under way.
        began, ended: the first request could be sent, the last answer ended; seconds of `time.perf_counter`.
        cpu_s: processor time that this client took meanwhile.
    """

    def __init__(self, client: Client, max_concurrency: int | None = None, duration_s: float | None = None) -> None:
        self.answers: list[Answer] = []
        self.num_open = 0
        self.began = self.ended = 0.0
        self.cpu_s = 0.0
        self._client = client
        self._places = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self._duration_s = math.inf if duration_s is None else duration_s

    async def send(self, requests: Iterable[Request]) -> None:
        """Send all, but those that wait for a place beyond the time, and wait for the last answer. Once per run."""
        gc.collect()
        gc.freeze()  # the requests; looking through them again would hold up the clocks
        cpu_s, self.began = time.process_time(), time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                await self._send_when_due(requests, group)
        finally:
            self.ended = max((answer.ended for answer in self.answers), default=self.began)
            self.cpu_s = time.process_time() - cpu_s
            gc.unfreeze()

    async def _send_when_due(self, requests: Iterable[Request], group: asyncio.TaskGroup) -> None:
        freed = self.began
        for request in requests:
            due = self.began + request.due_s
            if (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            if self._places is not None:
                is_held = self._places.locked()
                await self._places.acquire()
                if is_held and (freed := time.perf_counter()) > self.began + self._duration_s:
                    return
            group.create_task(self._ask(request, due, max(due, freed)))

    async def _ask(self, request: Request, due: float, ready: float) -> None:
        answer = Answer(due, ready, time.perf_counter())
        self.answers.append(answer)
        self.num_open += 1
        try:
            await self._client.ask(request, answer)
        finally:
            self.num_open -= 1
            if self._places is not None:
                self._places.release()
