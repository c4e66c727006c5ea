"""Connects the event loop and the engine thread: requests go to the thread, its step reports come back.

The engine thread calls `_deliver` once per step, which makes exactly one `call_soon_threadsafe`. The report contains
the events of all requests; the loop passes each event to the sink of its request. The engine thread never blocks here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from app.config.settings import Config
from app.contract.brownout_effects import SHEDDING_S, effects
from app.contract.engine_picture import EnginePicture, Watch
from app.contract.engine_status import EngineHealth, EngineState, EngineStats, ModelInfo, StepReport
from app.contract.errors import Draining, EngineFailed, ErrorInfo, ModelLoading, Overloaded, QuireError
from app.contract.events import RequestFailed
from app.contract.ports import EnginePort, EventSink
from app.contract.requests import Abort, EngineRequest, Pause, Resume, Submit
from app.streaming.background import Background
from app.streaming.open_requests import BROWNOUT, AdmissionCounts, OpenRequest, OpenRequests

# How long the end of the server waits for the step that the engine is computing.
JOIN_TIMEOUT_S = 1.0


class AsyncEngine:
    """Implements `EngineClient` over an engine thread. Loop only, except `_deliver`.

    `observe` is called on the loop with every step report, before the readers wake; metrics use it. Its exceptions are
    logged.
    """

    def __init__(self, port: EnginePort, config: Config, observe: Callable[[StepReport], None] | None = None) -> None:
        self._port = port
        self._observe = observe
        self._take_picture: Callable[[EnginePicture], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        scheduler = config.scheduler
        self._is_fair = scheduler.scheduling_policy == "fair"
        max_paused = config.server.max_paused_per_account
        self._open = OpenRequests(scheduler.max_queue, scheduler.max_num_seqs, max_paused)
        self._stats = EngineStats()
        self._num_reports = 0
        self._is_draining = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def start(self) -> None:
        """Start to load the model in the background. Call it once, on the loop that will use the engine."""
        self._loop = asyncio.get_running_loop()
        self._port.start(self._deliver)

    def submit(self, request: EngineRequest, sink: EventSink) -> None:
        """Submit a request; raises Overloaded also while new requests are shed."""
        self.submit_all([(request, sink)])

    def submit_all(self, submissions: Sequence[tuple[EngineRequest, EventSink]]) -> None:
        """Submit several requests; raises Overloaded also while new requests are shed."""
        requests = [request for request, _ in submissions]
        account = requests[0].account
        self._check_accepting(account)
        self._open.check(account, requests[1:], self._stats)
        for request, sink in submissions:
            assert request.id not in self._open, request.id
            self._open[request.id] = OpenRequest(request, sink)
        self._is_idle.clear()
        for request in requests:
            self._port.post(Submit(request))

    def check_room(self, account: str) -> None:
        """Reject a request that nobody has read yet; raises Overloaded also while new requests are shed."""
        self._check_accepting(account)
        self._open.check(account, (), self._stats)

    def abort(self, request_id: str) -> None:
        if request_id in self._open:
            self._port.post(Abort(request_id))

    def pause(self, request_id: str) -> None:
        """Stop generating for a request, which keeps its KV blocks until others need them. Ignores unknown ones."""
        if found := self._open.get(request_id):
            found.is_paused = True
            self._port.post(Pause(request_id))

    def resume(self, request_id: str) -> None:
        """Continue to generate for a paused request. Unknown and finished requests are ignored."""
        if found := self._open.get(request_id):
            found.is_paused = False
            self._port.post(Resume(request_id))

    def watch(self, take: Callable[[EnginePicture], None] | None) -> None:
        self._take_picture = take
        self._port.post(Watch(take is not None))

    def model_info(self) -> ModelInfo:
        model_info = self._port.model_info()
        if model_info is None:
            raise _rejection(self._port.health())
        return model_info

    def stats(self) -> EngineStats:
        """Return the counts of the last step; the brown-out level of an idle engine is 0."""
        return self._stats

    def brownout_level(self, account: str) -> int:
        """Return the level for a new request of an account: with `fair`, 0 if others cause the load. O(open)."""
        level = self.stats().brownout_level
        return level if level and (not self._is_fair or self._open.has_share(account)) else 0

    @property
    def counts(self) -> AdmissionCounts:
        """The counts of requests that were rejected because of load."""
        return self._open.counts

    def health(self) -> EngineHealth:
        """Return state and progress; while the engine only finishes open requests, the state is `DRAINING`."""
        health = self._port.health()
        if self._is_draining and health.state in (EngineState.LOADING, EngineState.READY):
            return replace(health, state=EngineState.DRAINING)
        return health

    async def drain(self, timeout_s: float, *, only_begun: bool = False) -> None:
        """Accept no new requests, and wait at most `timeout_s` until the open ones have ended. Cancel-safe.

        With `only_begun`, requests without a token fail at once, even while the engine is busy with a long step.
        """
        self._is_draining = True
        if only_begun:
            self._fail_unbegun()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()

    async def close(self) -> None:
        """Abort open requests and end the engine thread; requests it did not end get `RequestFailed`. Idempotent."""
        self._is_draining = True
        for request_id in self._open:
            self._port.post(Abort(request_id))
        self._port.stop()
        waiter = Background("engine-end", num_threads=1, max_queue=0)
        try:
            await waiter.run(self._port.join, JOIN_TIMEOUT_S)
        finally:
            waiter.close()
            self._fail_open(Draining("The server was stopped before the answer was complete.").info())

    def _deliver(self, report: StepReport) -> None:
        """Pass a report to the loop. Engine thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._receive, report)

    def _receive(self, report: StepReport) -> None:
        self._stats = stats = report.stats
        if stats.brownout_level and not stats.queues.num_running and not stats.queues.num_waiting:
            # An idle engine may send no report with a lower level, and its requests would be shed until one comes.
            self._stats = replace(stats, brownout_level=0)
        self._num_reports += 1
        for event in report.events:
            found = self._open.get(event.request_id)
            if found is None:
                continue
            found.sink.put(event, self._num_reports)
            if found.sink.is_complete:
                del self._open[event.request_id]
        health = self._port.health()
        if health.state is EngineState.FAILED:
            # The state is newer than the reports: reports that are already queued on the loop go first.
            assert self._loop is not None
            self._loop.call_soon(self._fail_open, _rejection(health).info())
        if not self._open:
            self._is_idle.set()
        if self._observe is not None:
            try:
                self._observe(report)
            except Exception:
                logging.getLogger(__name__).exception("a step report could not be observed")
        # The figures beside a picture are those after it: an idle engine makes no other.
        if report.picture is not None and self._take_picture is not None:
            self._take_picture(report.picture)

    def _fail_unbegun(self) -> None:
        error = Draining("The server is shutting down and had not begun this answer; try again later.").info()
        for request_id, found in [*self._open.items()]:
            if not found.sink.has_begun:
                del self._open[request_id]
                self._port.post(Abort(request_id))
                found.sink.put(RequestFailed(request_id, error, is_stopped=True))
        if not self._open:
            self._is_idle.set()

    def _fail_open(self, error: ErrorInfo) -> None:
        while self._open:
            request_id, found = self._open.popitem()
            found.sink.put(RequestFailed(request_id, error, is_stopped=True))
        self._is_idle.set()

    def _check_accepting(self, account: str) -> None:
        health = self._port.health()
        if health.state in (EngineState.LOADING, EngineState.FAILED):
            raise _rejection(health)
        if self._is_draining:
            raise Draining("The server is shutting down and takes no new requests; try again later.")
        if effects(self.brownout_level(account)).is_shedding:
            self._open.counts.rejections[BROWNOUT] += 1
            raise Overloaded("The server is overloaded. Try again later.", retry_after_s=SHEDDING_S)


def _rejection(health: EngineHealth) -> QuireError:
    """Return the error for a request to an engine that is loading or has failed."""
    if health.state is EngineState.LOADING:
        return ModelLoading(f"The model is loading ({health.progress:.0%}); try again in a moment.")
    # The cause is in the log and in the health routes; other clients do not need it.
    return EngineFailed("The engine has failed; the server must be restarted.")
