"""The engine thread, as the loop sees it, behind a store of prefixes: prompts are looked up before they are submitted.

A request waits while a thread reads what the store has of its prompt; commands for it wait with it. What is not read in
time is computed, and while a read hangs nobody waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from app.contract.engine_picture import Watch
from app.contract.engine_status import EngineHealth, ModelInfo, StepReport
from app.contract.errors import QuireError
from app.contract.ports import EnginePort, PrefixStore
from app.contract.requests import EngineCommand, EngineRequest, Submit
from app.contract.stored_prefix import StoredPrefix
from app.runtime.clock import Clock, monotonic
from app.streaming.background import Background

_log = logging.getLogger(__name__)
GRACE_S = 0.25
"""How long a read may take beyond its limit: the rest of a block, and the way back."""
FLUSH_S = 2.0
"""How long the end of the server waits for what is to be stored."""


class FetchingPort:
    """Implements `EnginePort` over another one. Loop only, but for `join`."""

    def __init__(self, port: EnginePort, store: PrefixStore, clock: Clock = monotonic) -> None:
        self._port = port
        self._store = store
        self._clock = clock
        self._thread = Background("kv-fetch", num_threads=1)
        self._waiting: dict[str, list[EngineCommand]] = {}  # by request, while its prefix is read
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading_until: float | None = None

    def start(self, deliver: Callable[[StepReport], None]) -> None:
        self._port.start(deliver)

    def post(self, command: EngineCommand) -> None:
        if isinstance(command, Watch):
            self._port.post(command)
            return
        request_id = command.request.id if isinstance(command, Submit) else command.request_id
        if request_id in self._waiting:
            self._waiting[request_id].append(command)
        elif isinstance(command, Submit) and (limit_s := self._limit_s(command.request)) > 0:
            self._waiting[request_id] = []
            task = asyncio.get_running_loop().create_task(self._submit(command.request, limit_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._port.post(command)

    def health(self) -> EngineHealth:
        return self._port.health()

    def model_info(self) -> ModelInfo | None:
        return self._port.model_info()

    def stop(self) -> None:
        """End the engine thread; requests whose prefixes are being read are dropped."""
        for task in self._tasks:
            task.cancel()
        self._waiting.clear()
        self._thread.close()
        self._port.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the engine thread to end, then let the store write what is left."""
        has_ended = self._port.join(timeout_s)
        self._store.close(FLUSH_S, has_ended=has_ended)
        return has_ended

    def _limit_s(self, request: EngineRequest) -> float:
        """Return how long a request may wait for its prefix; 0 where there is none, and while a read hangs."""
        reading_until = self._reading_until  # the thread sets it
        if reading_until is not None and self._clock() > reading_until + GRACE_S:
            return 0.0
        limit_s = self._store.limit_s(request)
        if request.start_deadline is not None:  # it must still be able to start
            limit_s = min(limit_s, (request.start_deadline - self._clock()) / 2)
        return limit_s

    async def _submit(self, request: EngineRequest, limit_s: float) -> None:
        """Read the prefix of a request, submit it, and pass on the commands that came meanwhile."""
        stored: StoredPrefix | None = None
        try:
            async with asyncio.timeout(limit_s + GRACE_S):
                until = self._clock() + limit_s
                stored = await self._thread.run(self._fetch, request, until, account=request.account)
        except (TimeoutError, QuireError):  # too slow, or too many wait: the prompt is computed
            pass
        except Exception:  # also one that nobody thought of: no request is lost
            _log.exception("the beginning of a prompt could not be read")
        self._port.post(Submit(replace(request, stored=stored)))
        for command in self._waiting.pop(request.id):
            self._port.post(command)

    def _fetch(self, request: EngineRequest, until: float) -> StoredPrefix | None:
        """Read the prefix of a request. On the thread."""
        self._reading_until = until
        try:
            return self._store.fetch(request, until - self._clock())
        finally:
            self._reading_until = None
