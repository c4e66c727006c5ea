"""The engine thread: loads the model, owns the engine, and turns its inbox into steps.

Commands come in from the loop through `post`, which never blocks; one report per step goes out through `deliver`.
The thread sleeps on a condition while there is nothing to do, and is woken by a command or by a request's deadline.

`health` is the progress stamp: when it stays busy and unchanged for too long, the watchdog (`server/watchdog.py`) calls
`fail`. A failure is final, whatever the thread still does.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from app.config.settings import Config
from app.contract.engine_counts import QueueCounts
from app.contract.engine_status import EngineHealth, EngineState, EngineStats, ModelInfo, StepReport
from app.contract.errors import EngineFailed, QuireError
from app.contract.requests import EngineCommand
from app.engine.kv_disk.disk_store import KVDisk
from app.engine.preload import preload_torch
from app.runtime.clock import Clock, monotonic
from app.runtime.start_timings import StartTimings
from app.text.entry.opened_model import OpenedModel
from app.text.grammar.cache import GrammarCache

_log = logging.getLogger("quire.engine")

Deliver = Callable[[StepReport], None]


class DrivenEngine(Protocol):
    """The engine that the thread calls: `engine.Engine`, which says more, or a test's fake."""

    model_info: ModelInfo

    def turn(self, commands: Iterable[EngineCommand], now: float) -> StepReport:
        """Carry out commands, and one step."""

    def next_wakeup(self, now: float) -> float:
        """Return when there is something to do without a command."""

    def work_idly(self) -> bool:
        """Do a piece of idle work; return whether there was any."""


class _Stopped(Exception):
    """The thread was stopped while it loaded the model."""


class EngineThread:
    """Implements `EnginePort`. Every public method may be called from any thread and never blocks, but for `join`.

    `model` is the configured one, where the caller has opened it already; `kv_disk` stores the prefix cache.
    """

    def __init__(
        self,
        config: Config,
        *,
        model: OpenedModel | None = None,
        build: Callable[[Callable[[float], None]], DrivenEngine] | None = None,
        grammars: GrammarCache | None = None,
        timings: StartTimings | None = None,
        kv_disk: KVDisk | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self.failure: QuireError | None = None
        self._config = config
        self._model = model
        self._build = build or self._build_engine
        self._grammars = grammars
        self._timings = timings or StartTimings()
        self._kv_disk = kv_disk
        self._clock = clock
        self._engine: DrivenEngine | None = None
        self._deliver: Deliver | None = None
        self._stats = EngineStats()
        self._health = EngineHealth(EngineState.LOADING)
        self._end: EngineHealth | None = None  # the health of an engine that has failed
        self._inbox: deque[EngineCommand] = deque()
        self._wake = threading.Condition()
        self._is_idle = False  # changed under `_wake`; other threads may write `_health` only while it is True
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def start(self, deliver: Deliver) -> None:
        self._deliver = deliver
        # A daemon: a step that hangs must not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, args=(deliver,), name="quire-engine", daemon=True)
        self._thread.start()

    def post(self, command: EngineCommand) -> None:
        with self._wake:
            self._inbox.append(command)
            self._end_idleness()
            self._wake.notify()

    def health(self) -> EngineHealth:
        if self._end is not None:
            return self._end
        is_idle = self._is_idle  # read first: work posted in between has already stamped the health read next
        health = self._health
        return health if is_idle or health.state is not EngineState.READY else replace(health, is_busy=True)

    def model_info(self) -> ModelInfo | None:
        engine = self._engine
        return None if engine is None or self._end is not None else engine.model_info

    def fail(self, error: QuireError) -> None:
        """Mark the engine failed and report that to the loop, even if the engine thread hangs.

        A thread that hung and continues ends. The first failure stays.
        """
        self._conclude(error, error.message)

    def stop(self) -> None:
        """Stop the thread: commands posted before are still carried out, loading a model is abandoned."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()

    def join(self, timeout_s: float) -> bool:
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self, deliver: Deliver) -> None:
        try:
            engine = self._engine = self._build(self._report_progress)
            self._health = EngineHealth(EngineState.READY, 1.0, 0, self._clock())
            deliver(self._turn(engine, ()))
            while self._may_go_on():
                if self._inbox or self._is_due(engine):
                    deliver(self._turn(engine, self._take_commands()))
                elif engine.work_idly():
                    self._health = replace(self._health, last_progress_time=self._clock())
                else:
                    self._sleep(engine)
        except _Stopped:
            return
        except BaseException as error:  # any error: no caller may wait for a thread that has ended
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        """Report why the engine ended: in full in the log and in `failure`, to clients only texts meant for them.

        What is meant for users and prevents a start is not logged: whoever started the thread says it, once.
        """
        if isinstance(error, QuireError):
            if self._health.state is not EngineState.LOADING:
                _log.error("the engine ended: %s", error)
            self._conclude(error, error.message)
        else:
            _log.error("the engine ended: %s", error, exc_info=error)
            failure = EngineFailed(f"{type(error).__name__}: {error}")
            self._conclude(failure, "The engine has failed; see the server log.")

    def _conclude(self, failure: QuireError, message: str) -> None:
        """Set the health to FAILED and send the loop a last report. Any thread; only the first call counts."""
        with self._wake:
            if self._end is not None:
                return
            self.failure = failure
            self._end = replace(self._health, state=EngineState.FAILED, message=message)
            self._wake.notify()
        if self._deliver is not None:
            self._deliver(StepReport((), replace(self._stats, queues=QueueCounts())))

    def _take_commands(self) -> Iterator[EngineCommand]:
        """Yield the commands in the inbox, and those posted while these are carried out."""
        while self._inbox:
            yield self._inbox.popleft()

    def _turn(self, engine: DrivenEngine, commands: Iterable[EngineCommand]) -> StepReport:
        report = engine.turn(commands, self._clock())
        self._stats = report.stats
        if report.stats.step != self._health.step:
            self._health = EngineHealth(EngineState.READY, 1.0, report.stats.step, self._clock())
        return report

    def _may_go_on(self) -> bool:
        """Return whether the thread has not been stopped; commands posted before `stop` are still carried out."""
        with self._wake:
            return self._end is None and (bool(self._inbox) or not self._is_stopping)

    def _is_due(self, engine: DrivenEngine) -> bool:
        now = self._clock()
        return engine.next_wakeup(now) <= now

    def _sleep(self, engine: DrivenEngine) -> None:
        """Wait until there is a command, a turn is due, or the thread is to end."""
        with self._wake:
            while not (self._inbox or self._is_stopping or self._end or self._is_due(engine)):
                now = self._clock()
                self._is_idle = True
                self._wake.wait(min(max(0.0, engine.next_wakeup(now) - now), threading.TIMEOUT_MAX))
            self._end_idleness()

    def _end_idleness(self) -> None:
        """Restart the time without progress when work arrives. Under `_wake`."""
        if self._is_idle:
            self._health = replace(self._health, last_progress_time=self._clock())
            self._is_idle = False

    def _report_progress(self, share: float) -> None:
        if self._is_stopping:
            raise _Stopped
        self._health = EngineHealth(EngineState.LOADING, share, 0, self._clock())

    def _build_engine(self, progress: Callable[[float], None]) -> DrivenEngine:
        self._timings.begin()
        preload_torch()
        # Here, on the engine thread: importing torch takes over a second, and the page must answer meanwhile.
        from app.engine.build import build_engine

        self._timings.end("import_torch")
        model, self._model = self._model, None  # headers can be large, and are not needed any more
        return build_engine(
            self._config,
            progress=progress,
            model=model,
            grammars=self._grammars,
            is_serving=True,
            timings=self._timings,
            kv_disk=self._kv_disk,
        )
