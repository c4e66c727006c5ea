"""An engine without a model: known tokens at a given rate, all streams in one step report, as in a step of the engine.

It has a thread of its own like the engine, so that its cost can be separated from that of the server, and so that
reports cross to the loop in the same way.

    hold       no tokens: streams are open and wait
    a rate     steps per second, each at its time; streams that are faster have steps in between
    saturated  the next step when the loop has processed the report of the one before: as fast as the server can, and
               still one event for each token, because no second report waits behind it
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator

from app.contract.engine_counts import QueueCounts
from app.contract.engine_status import EngineHealth, EngineState, EngineStats, ModelInfo, StepReport
from app.contract.errors import QuireError
from app.contract.events import ChoiceEnd, EngineEvent, Finished, FinishReason, Timings, TokenDelta, Usage
from app.contract.requests import Abort, EngineCommand, EngineRequest, Pause, Resume, Submit
from app.runtime.clock import monotonic
from benchmarks.streams.script import prefix_of, read_seed, stamp_of

HOLD, SATURATED = 0.0, math.inf
# From a report to the socket an event passes from `AsyncEngine` to the writing task, which then waits again: each of
# these takes one turn of the loop; the others are a reserve.
TURNS = 5
TAKEN_TIMEOUT_S = 1.0  # a report counts as read after this time
TOKEN_ID = 5


class ReportEvents(tuple[EngineEvent, ...]):
    """The events of one report; the first time that they are read, `on_read` is called, on the loop."""

    on_read: Callable[[], None] | None = None

    def __iter__(self) -> Iterator[EngineEvent]:
        """Return the events in order."""
        on_read, self.on_read = self.on_read, None
        if on_read is not None:
            on_read()
        return super().__iter__()


class _Work:
    """An open stream."""

    __slots__ = ("began", "is_paused", "number", "prefix", "request", "speed", "stream")

    def __init__(self, request: EngineRequest) -> None:
        assert request.params.seed is not None, "admission sets the seed"
        self.request = request
        self.stream, self.speed = read_seed(request.params.seed)
        self.prefix = prefix_of(self.stream)
        self.number = 0
        self.is_paused = False
        self.began = monotonic()


class ScriptedEngine:
    """Implements `EnginePort`, for requests of one choice. Every method may be called from any thread."""

    def __init__(self, model_info: ModelInfo) -> None:
        self._model_info = model_info
        self._deliver: Callable[[StepReport], None] | None = None
        self._inbox: deque[EngineCommand] = deque()
        self._works: dict[str, _Work] = {}
        self._ended: dict[int, int] = {}
        self._wake = threading.Condition()
        self._taken = threading.Event()
        self._taken.set()
        self._rate = HOLD
        self._next_tick = 0.0
        self._num_parts = 1  # into which a step is divided, for the fastest stream
        self._part = 0
        self._is_finishing = self._is_stopping = False
        self._step = 0
        self._thread: threading.Thread | None = None
        self._failure: QuireError | None = None

    @property
    def num_open(self) -> int:
        """The number of open streams."""
        return len(self._works)

    def tokens(self) -> dict[int, int]:
        """Return the number of generated tokens of each stream, open or ended."""
        return {**self._ended, **{work.stream: work.number for work in list(self._works.values())}}

    def pace(self, rate: float) -> None:
        """Go on with `rate` steps per second, HOLD or SATURATED; the first one comes after one interval."""
        with self._wake:
            self._rate = rate
            self._next_tick = monotonic() + (1 / rate if rate else 0.0)
            self._wake.notify()

    def finish(self) -> None:
        """End all open streams after the token they are at."""
        with self._wake:
            self._is_finishing = True
            self._wake.notify()

    def quiet_time(self) -> float:
        """Return the next time (monotonic) that lies three quarters between two steps; now, if there is no pace."""
        now, interval = monotonic(), 1 / (self._rate * self._num_parts) if 0 < self._rate < math.inf else 0.0
        due = self._next_tick - interval / 4
        return due if due >= now else due + interval if interval else now

    def start(self, deliver: Callable[[StepReport], None]) -> None:
        self._deliver = deliver
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        self._thread.start()

    def post(self, command: EngineCommand) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    def health(self) -> EngineHealth:
        """Return a health that is never busy, so that no watchdog fires at a low rate."""
        if self._failure is not None:
            return EngineHealth(EngineState.FAILED, 1.0, self._step, 0.0, self._failure.message)
        return EngineHealth(EngineState.READY, 1.0, self._step)

    def model_info(self) -> ModelInfo | None:
        return self._model_info

    def fail(self, error: QuireError) -> None:
        """Give up; see EngineThread.fail."""
        self._failure = error

    def stop(self) -> None:
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._taken.set()

    def join(self, timeout_s: float) -> bool:
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_stopping:
            is_due = self._wait()
            events: list[EngineEvent] = []
            while self._inbox:
                self._execute(self._inbox.popleft(), events)
            if is_due:
                self._advance(events)
            if self._is_finishing:
                self._is_finishing = False
                for work in list(self._works.values()):
                    self._end(work, FinishReason.LENGTH, events)
            if events or is_due:
                self._report(events)
        events = []
        for work in list(self._works.values()):
            self._end(work, FinishReason.CANCELLED, events)
        self._report(events)

    def _wait(self) -> bool:
        """Wait for something to do; return whether a step is due."""
        if self._rate == SATURATED and self._works:
            self._taken.wait(TAKEN_TIMEOUT_S)
            return True
        with self._wake:
            rest = self._next_tick - monotonic() if 0 < self._rate < SATURATED else None
            if not (self._inbox or self._is_finishing or self._is_stopping) and (rest is None or rest > 0):
                self._wake.wait(rest)
            if not 0 < self._rate < SATURATED or monotonic() < self._next_tick:
                return False
            self._next_tick += 1 / (self._rate * self._num_parts)
            return True

    def _execute(self, command: EngineCommand, events: list[EngineEvent]) -> None:
        match command:
            case Submit(request):
                self._works[request.id] = _Work(request)
            case Abort(request_id) | Pause(request_id) | Resume(request_id) if work := self._works.get(request_id):
                if isinstance(command, Abort):
                    self._end(work, FinishReason.CANCELLED, events)
                else:
                    work.is_paused = isinstance(command, Pause)

    def _advance(self, events: list[EngineEvent]) -> None:
        """Generate a token for every stream that is not paused and due."""
        stamp, ended = f"{stamp_of(monotonic()):08x}", []
        for work in self._works.values():
            if work.is_paused or self._part * work.speed % self._num_parts:
                continue
            work.number += 1
            text = f"{work.prefix}{work.number:05x}{stamp}"
            events.append(TokenDelta(work.request.id, 0, work.number, (TOKEN_ID,), text))
            if work.number == work.request.params.max_tokens:
                ended.append(work)
        for work in ended:
            self._end(work, FinishReason.LENGTH, events)
        self._part = (self._part + 1) % self._num_parts
        if not self._part and self._rate != SATURATED:
            self._num_parts = max((work.speed for work in self._works.values() if not work.is_paused), default=1)

    def _end(self, work: _Work, reason: FinishReason, events: list[EngineEvent]) -> None:
        del self._works[work.request.id]
        self._ended[work.stream] = work.number
        usage, duration_s = Usage(len(work.request.prompt_token_ids), work.number), monotonic() - work.began
        events.append(Finished(work.request.id, 0, ChoiceEnd(reason), usage, Timings(0.0, 0.0, duration_s)))

    def _report(self, events: list[EngineEvent]) -> None:
        self._step += 1
        num_paused = sum(work.is_paused for work in self._works.values())
        stats = EngineStats(self._step, queues=QueueCounts(len(self._works) - num_paused, 0, num_paused))
        report = ReportEvents(events)
        if self._rate == SATURATED:
            report.on_read = self._count_turns
            self._taken.clear()
        assert self._deliver is not None
        self._deliver(StepReport(report, stats, 0.0, 0, len(events)))

    def _count_turns(self, rest: int = TURNS) -> None:
        """Let the engine go on after some turns of the loop. Loop only."""
        if rest:
            asyncio.get_running_loop().call_soon(self._count_turns, rest - 1)
        else:
            self._taken.set()
