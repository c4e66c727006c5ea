"""The loop's side of the thread border: requests go to the engine thread, its step reports come back.

The engine thread calls `_deliver` once per step, which makes exactly one `call_soon_threadsafe`; the events of all
requests travel in that one report and are dealt out to mailboxes on the loop. Nothing here ever blocks the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from app.brownout import SHEDDING_S, effects
from app.config import Config
from app.errors import Draining, EngineFailed, ErrorInfo, ModelLoading, Overloaded, QuireError
from app.messages import (
    Abort,
    EngineHealth,
    EnginePort,
    EngineRequest,
    EngineState,
    EngineStats,
    ModelCard,
    Pause,
    RequestFailed,
    Resume,
    StepReport,
    Submit,
)
from app.streaming.background import Background
from app.streaming.mailbox import Mailbox

JOIN_TIMEOUT_S = 10.0


class _OpenRequest(NamedTuple):
    """A request that the engine has not ended, and where its events go."""

    request: EngineRequest
    mailbox: Mailbox

    @property
    def num_sequences(self) -> int:
        """How many sequences it has, as far as the loop knows."""
        params = self.request.params
        return params.num_sequences if params.is_ranked else self.mailbox.num_open_choices


class AsyncEngine:
    """Implements `EngineClient` over an engine thread. Loop only, but for `_deliver`.

    `observe` sees every step report on the loop, before the readers wake: metrics come from there. What it raises is
    logged and concerns nobody else.
    """

    def __init__(self, port: EnginePort, config: Config, observe: Callable[[StepReport], None] | None = None) -> None:
        self._port = port
        self._max_queue = config.scheduler.max_queue
        self._max_num_seqs = config.scheduler.max_num_seqs
        self._observe = observe
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[str, _OpenRequest] = {}
        self._stats = EngineStats()
        self._num_reports = 0
        self._is_draining = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def start(self) -> None:
        """Begin loading the model in the background; call it once, on the loop that will use the engine."""
        self._loop = asyncio.get_running_loop()
        self._port.start(self._deliver)

    def submit(self, request: EngineRequest) -> Mailbox:
        """Hand a request to the engine and return its events.

        Raises:
            ModelLoading, EngineFailed, Draining: the engine takes no requests (yet, any more).
            Overloaded: the queue is full, or the engine has been under pressure for so long that it sheds new work.
        """
        self._refuse_when_unable()
        self._refuse_when_shedding()
        self._refuse_when_full()
        assert request.id not in self._open, request.id
        mailbox = Mailbox(request.params.n)
        self._open[request.id] = _OpenRequest(request, mailbox)
        self._is_idle.clear()
        self._port.post(Submit(request))
        return mailbox

    def abort(self, request_id: str) -> None:
        """Drop a request; the engine answers with one `Finished(cancelled)` per open choice. Idempotent."""
        if request_id in self._open:
            self._port.post(Abort(request_id))

    def pause(self, request_id: str) -> None:
        """Stop generating for a request; its KV blocks stay. Without effect on unknown and finished ones."""
        if request_id in self._open:
            self._port.post(Pause(request_id))

    def resume(self, request_id: str) -> None:
        """Generate again for a paused request. Without effect on unknown and finished ones."""
        if request_id in self._open:
            self._port.post(Resume(request_id))

    def card(self) -> ModelCard:
        """Return the loaded model's card.

        Raises:
            ModelLoading, EngineFailed: there is none (yet, any more).
        """
        card = self._port.card()
        if card is None:
            raise _refusal(self._port.health())
        return card

    def stats(self) -> EngineStats:
        """Return the counts of the last step; an engine with nothing to do is under no pressure."""
        return self._stats

    def health(self) -> EngineHealth:
        """Return state and progress; an engine that works but takes no more requests is draining."""
        health = self._port.health()
        if self._is_draining and health.state in (EngineState.LOADING, EngineState.READY):
            return replace(health, state=EngineState.DRAINING)
        return health

    async def drain(self, timeout_s: float, *, only_begun: bool = False) -> None:
        """Take no new requests and wait until the open ones have ended, at most `timeout_s`. Cancel-safe.

        With `only_begun` those without a token fail at once, whatever the engine is busy with.
        """
        self._is_draining = True
        if only_begun:
            self._fail_unbegun()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()

    async def close(self) -> None:
        """Abort what is left and end the engine thread; streams it could not end get `RequestFailed`. Idempotent."""
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
        """Carry a report over to the loop. Engine thread."""
        assert self._loop is not None
        # A loop that has closed raises: nobody is left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._receive, report)

    def _receive(self, report: StepReport) -> None:
        self._stats = stats = report.stats
        if stats.brownout_level and not stats.num_running and not stats.num_waiting:
            # There may be no further report to tell of a lower level, and nobody would be let in to cause one.
            self._stats = replace(stats, brownout_level=0)
        self._num_reports += 1
        for event in report.events:
            found = self._open.get(event.request_id)
            if found is None:
                continue
            found.mailbox.put(event, self._num_reports)
            if found.mailbox.is_complete:
                del self._open[event.request_id]
        health = self._port.health()
        if health.state is EngineState.FAILED:
            # The engine's state is ahead of its reports: those that are on their way go first.
            assert self._loop is not None
            self._loop.call_soon(self._fail_open, _refusal(health).info())
        if not self._open:
            self._is_idle.set()
        self._show(report)

    def _show(self, report: StepReport) -> None:
        if self._observe is None:
            return
        try:
            self._observe(report)
        except Exception:
            logging.getLogger(__name__).exception("a step report could not be observed")

    def _fail_unbegun(self) -> None:
        error = Draining("The server is shutting down and had not begun this answer; use another one.").info()
        for request_id, found in list(self._open.items()):
            if not found.mailbox.statistics().num_events:
                self._port.post(Abort(request_id))
                found.mailbox.fail(RequestFailed(request_id, error))
                del self._open[request_id]
        if not self._open:
            self._is_idle.set()

    def _fail_open(self, error: ErrorInfo) -> None:
        for request_id, found in self._open.items():
            found.mailbox.put(RequestFailed(request_id, error))
        self._open.clear()
        self._is_idle.set()

    def _refuse_when_unable(self) -> None:
        health = self._port.health()
        if health.state in (EngineState.LOADING, EngineState.FAILED):
            raise _refusal(health)
        if self._is_draining:
            raise Draining("The server is shutting down and takes no new requests; use another one.")

    def _refuse_when_shedding(self) -> None:
        if effects(self._stats.brownout_level).is_shedding:
            raise Overloaded(
                "The server has more work than it can do in good time. Try again later.", retry_after_s=SHEDDING_S
            )

    def _refuse_when_full(self) -> None:
        """Refuse one more waiting request.

        The last report is a step old, but every open request is counted here. So all that do not run are taken to
        wait, except that, while the engine reports none waiting, its free seats will be taken first: each sequence
        takes one, so there is room for fewer requests of many sequences.
        """
        stats, num_open = self._stats, len(self._open)
        num_sequences = sum(found.num_sequences for found in self._open.values())
        num_seated = stats.num_running if stats.num_waiting else self._max_num_seqs * num_open / max(num_sequences, 1)
        num_waiting = num_open - stats.num_paused - num_seated
        if num_waiting >= self._max_queue and num_open:
            raise Overloaded(f"The queue is full: {self._max_queue} requests are waiting. Try again later.")


def _refusal(health: EngineHealth) -> QuireError:
    """The error for a request that an engine of this health cannot take."""
    if health.state is EngineState.LOADING:
        return ModelLoading(f"The model is loading ({health.progress:.0%}); try again in a moment.")
    # The cause stands in the log and in the health routes, not in the answers to everybody's requests.
    return EngineFailed("The engine has failed; the server must be restarted.")
