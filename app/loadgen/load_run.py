"""One load at one rate: requests are sent when they are due, independent of the server's answers.

If `max_concurrency` requests are open, the next one is held until one ends; that does not count as late.
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
    """Sends requests, and keeps the record of each.

    Attributes:
        answers: one for each request that was sent, in order; those that have not ended are `open`.
        num_open: number of open requests.
        began, ended: when the first request could be sent, and when the last answer ended (`time.perf_counter`).
        cpu_s: processor time of this client between them.
    """

    def __init__(self, client: Client, max_concurrency: int | None = None, duration_s: float | None = None) -> None:
        self.answers: list[Answer] = []
        self.num_open = 0
        self.began = self.ended = 0.0
        self.cpu_s = 0.0
        self._client = client
        self._slots = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self._duration_s = math.inf if duration_s is None else duration_s

    async def send(self, requests: Iterable[Request]) -> None:
        """Send all requests, and wait for the last answer. Requests held beyond the duration are not sent.

        Once per run.
        """
        gc.collect()
        gc.freeze()  # a collection that visits all requests would delay the measured times
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
            if self._slots is not None:
                is_held = self._slots.locked()
                await self._slots.acquire()
                if is_held and (freed := time.perf_counter()) > self.began + self._duration_s:
                    return
            group.create_task(self._send(request, due, max(due, freed)))

    async def _send(self, request: Request, due: float, ready: float) -> None:
        answer = Answer(due, ready, time.perf_counter())
        self.answers.append(answer)
        self.num_open += 1
        try:
            await self._client.send(request, answer)
        finally:
            self.num_open -= 1
            if self._slots is not None:
                self._slots.release()
