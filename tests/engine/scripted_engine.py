"""A scripted engine for tests of the engine thread, and a collector of reports; `HANG_S` only ends hanging tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from math import inf

import pytest

from app.contract.engine_status import EngineStats, ModelInfo, StepReport
from app.contract.events import EngineEvent, Finished, RequestFailed, TokenDelta
from app.contract.requests import Abort, EngineCommand, EngineRequest, Pause, Resume, Submit
from app.contract.sampling_params import SamplingParams

HANG_S = 60
MODEL_INFO = ModelInfo("scripted", "0", 100, 100, 100)


class ReportCollector:
    """Collects reports from the engine thread and waits for them."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self._changed = threading.Condition()

    def __call__(self, report: StepReport) -> None:
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()

    @property
    def events(self) -> list[EngineEvent]:
        """All events so far."""
        return [event for report in list(self.reports) for event in report.events]

    def wait(self, is_done: Callable[[], object]) -> None:
        """Wait until `is_done` returns true; checked after each report."""
        with self._changed:
            assert self._changed.wait_for(is_done, HANG_S), "no such report was delivered"

    def wait_for(self, num_reports: int) -> None:
        """Wait until at least `num_reports` reports were delivered."""
        self.wait(lambda: len(self.reports) >= num_reports)

    def wait_for_ends(self, *request_ids: str) -> None:
        """Wait until these requests have ended."""
        ends = (Finished, RequestFailed)
        self.wait(lambda: set(request_ids) <= {e.request_id for e in self.events if isinstance(e, ends)})


class ScriptedEngine:
    """A DrivenEngine that records its calls; each submitted request runs for `max_tokens` steps."""

    def __init__(self) -> None:
        self.model_info = MODEL_INFO
        self.next_deadline = inf
        self.calls: list[str] = []
        self.steps_left: dict[str, int] = {}
        self.num_steps = 0
        self.may_step = threading.Semaphore(10**6)
        self.has_added = threading.Event()

    def turn(self, commands: Iterable[EngineCommand], now: float) -> StepReport:
        for command in commands:
            match command:
                case Submit(request):
                    self.add(request)
                case Abort(request_id) | Pause(request_id) | Resume(request_id):
                    self.record(command, request_id)
        events, counts = [], (0, 0)
        if self.next_wakeup(now) <= now:
            events, counts = self.step(now), (3, 4)
        return StepReport(tuple(events), EngineStats(step=self.num_steps), 1.0, *counts)

    def next_wakeup(self, now: float) -> float:
        return now if self.steps_left else self.next_deadline

    def work_idly(self) -> bool:
        return False

    def add(self, request: EngineRequest) -> None:
        self.calls.append(f"add {request.id}")
        self.steps_left[request.id] = request.params.max_tokens
        self.has_added.set()

    def record(self, command: EngineCommand, request_id: str) -> None:
        self.calls.append(f"{type(command).__name__.lower()} {request_id}")
        if isinstance(command, Abort):
            self.steps_left.pop(request_id, None)

    def step(self, now: float) -> list[EngineEvent]:
        assert self.may_step.acquire(timeout=HANG_S)
        self.calls.append("step")
        self.num_steps += 1
        stepped = list(self.steps_left)
        self.steps_left = {name: count - 1 for name, count in self.steps_left.items() if count > 1}
        return [TokenDelta(name, 0, 1, (1,), "") for name in stepped]


def submit(name: str, max_tokens: int = 1) -> Submit:
    """The command that submits a request."""
    return Submit(EngineRequest(name, (1,), SamplingParams(max_tokens=max_tokens, seed=0), 0.0))


def record_wait_timeouts(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Return a list to which the timeout of every later wait of the engine thread is appended."""
    timeouts: list[float | None] = []
    wait = threading.Condition.wait

    def recording_wait(condition: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread().name == "quire-engine":
            timeouts.append(timeout)
        return wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", recording_wait)
    return timeouts
