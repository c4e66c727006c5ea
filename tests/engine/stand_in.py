"""An engine that does what a test says, and the reports of the thread that drives it. Waits are hang limits."""

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
CARD = ModelInfo("stand-in", "0", 100, 100, 100)


class Delivered:
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
        """Wait until something has been delivered."""
        with self._changed:
            assert self._changed.wait_for(is_done, HANG_S), "nothing came"

    def wait_for(self, num_reports: int) -> None:
        """Wait until there are so many reports."""
        self.wait(lambda: len(self.reports) >= num_reports)

    def wait_for_ends(self, *request_ids: str) -> None:
        """Wait until these requests have ended."""
        ends = (Finished, RequestFailed)
        self.wait(lambda: set(request_ids) <= {e.request_id for e in self.events if isinstance(e, ends)})


class StandIn:
    """A DrivenEngine that notes what is asked of it; each submitted request has as many steps as max_tokens."""

    def __init__(self) -> None:
        self.model_info = CARD
        self.next_deadline = inf
        self.calls: list[str] = []
        self.left: dict[str, int] = {}
        self.num_steps = 0
        self.may_step = threading.Semaphore(10**6)
        self.has_added = threading.Event()

    def turn(self, commands: Iterable[EngineCommand], now: float) -> StepReport:
        for command in commands:
            match command:
                case Submit(given):
                    self.add(given)
                case Abort(request_id) | Pause(request_id) | Resume(request_id):
                    self.note(command, request_id)
        events, counts = [], (0, 0)
        if self.next_wakeup(now) <= now:
            events, counts = self.step(now), (3, 4)
        return StepReport(tuple(events), EngineStats(step=self.num_steps), 1.0, *counts)

    def next_wakeup(self, now: float) -> float:
        return now if self.left else self.next_deadline

    def work_idly(self) -> bool:
        return False

    def add(self, given: EngineRequest) -> None:
        self.calls.append(f"add {given.id}")
        self.left[given.id] = given.params.max_tokens
        self.has_added.set()

    def note(self, command: EngineCommand, request_id: str) -> None:
        self.calls.append(f"{type(command).__name__.lower()} {request_id}")
        if isinstance(command, Abort):
            self.left.pop(request_id, None)

    def step(self, now: float) -> list[EngineEvent]:
        assert self.may_step.acquire(timeout=HANG_S)
        self.calls.append("step")
        self.num_steps += 1
        done = list(self.left)
        self.left = {name: count - 1 for name, count in self.left.items() if count > 1}
        return [TokenDelta(name, 0, 1, (1,), "") for name in done]


def submit(name: str, max_tokens: int = 1) -> Submit:
    """The command that starts a request."""
    return Submit(EngineRequest(name, (1,), SamplingParams(max_tokens=max_tokens, seed=0), 0.0))


def note_waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """From now on the time limits of all waits of the engine thread are added to the list that this returns."""
    limits: list[float | None] = []
    wait = threading.Condition.wait

    def noting_wait(condition: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread().name == "quire-engine":
            limits.append(timeout)
        return wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", noting_wait)
    return limits
