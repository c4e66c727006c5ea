"""The engine thread: deadlines, progress timestamps, and the end of a failed engine."""

from __future__ import annotations

import threading
from math import inf

import pytest

from app.config.settings import make_config
from app.contract.engine_status import EngineState, EngineStats, StepReport
from app.contract.errors import DeadlineExceeded, EngineFailed
from app.contract.events import EngineEvent, RequestFailed
from app.contract.requests import Abort, EngineCommand
from app.engine.thread import EngineThread
from app.runtime.clock import monotonic
from tests.engine.scripted_engine import HANG_S, ReportCollector, ScriptedEngine, record_wait_timeouts, submit


@pytest.fixture
def engine() -> ScriptedEngine:
    """A scripted engine."""
    return ScriptedEngine()


def wait_until_idle(thread: EngineThread) -> None:
    """Wait until a ready engine has nothing to do."""
    deadline = monotonic() + HANG_S
    while thread.health().state is not EngineState.READY or thread.health().is_busy:
        assert monotonic() < deadline
        threading.Event().wait(0.001)


def test_an_expired_deadline_wakes_an_engine_without_ready_work(engine: ScriptedEngine):
    """Its only request is paused, and its deadline expires before any command."""
    expirations = []

    def expire(now: float) -> list[EngineEvent]:
        assert now >= engine.next_deadline
        engine.next_deadline = inf
        expirations.append(now)
        return [RequestFailed("a", DeadlineExceeded("Too late.").info())]

    engine.step = expire
    engine.next_deadline = monotonic() + 0.01
    thread, delivered = EngineThread(make_config({}), build=lambda _: engine), ReportCollector()
    thread.start(delivered)
    delivered.wait_for_ends("a")
    thread.stop()
    assert thread.join(HANG_S)
    # At most one turn before: on a busy machine the deadline expires before the first one.
    assert len(expirations) == 1 and len(delivered.reports) <= 2


@pytest.mark.parametrize(("deadline", "timeout"), [(107.0, 7.0), (float("inf"), threading.TIMEOUT_MAX)])
def test_an_idle_engine_sleeps_until_the_next_deadline_or_command(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, deadline: float, timeout: float
):
    timeouts = record_wait_timeouts(monkeypatch)
    engine.next_deadline = deadline
    thread, delivered = EngineThread(make_config({}), build=lambda _: engine, clock=lambda: 100.0), ReportCollector()
    thread.start(delivered)
    delivered.wait_for(1)
    thread.post(Abort("unknown"))
    delivered.wait_for(2)
    thread.stop()
    assert thread.join(HANG_S)
    assert engine.num_steps == 0 and set(timeouts) == {timeout}


def test_an_expired_deadline_is_handled_in_the_turn_of_a_command(engine: ScriptedEngine):
    engine.may_step = threading.Semaphore(0)

    def step(now: float) -> list[EngineEvent]:
        engine.next_deadline = inf
        return [RequestFailed("a", DeadlineExceeded("Too late.").info())]

    def record(command: EngineCommand, request_id: str) -> None:
        engine.calls.append(f"abort {request_id}")
        engine.next_deadline = 99.0  # only now: an engine that falls asleep would still see it

    engine.step, engine.record = step, record
    thread, delivered = EngineThread(make_config({}), build=lambda _: engine, clock=lambda: 100.0), ReportCollector()
    thread.start(delivered)
    wait_until_idle(thread)
    thread.post(Abort("unknown"))
    delivered.wait_for_ends("a")
    assert engine.calls == ["abort unknown"] and len(delivered.reports) == 2
    thread.stop()
    assert thread.join(HANG_S)


def test_an_engine_is_busy_from_a_command_until_no_work_is_ready(engine: ScriptedEngine):
    now = [1.0]
    thread, delivered = EngineThread(make_config({}), build=lambda _: engine, clock=lambda: now[0]), ReportCollector()
    assert not thread.health().is_busy, "still loading"
    thread.start(delivered)
    wait_until_idle(thread)
    engine.may_step = threading.Semaphore(0)
    now[0] = 50.0
    thread.post(submit("a", max_tokens=2))
    health = thread.health()
    assert (health.is_busy, health.step, health.last_progress_time) == (True, 0, 50.0), "idle time does not count"
    assert engine.has_added.wait(HANG_S)
    now[0] = 60.0
    thread.post(Abort("unknown"))
    assert thread.health().last_progress_time == 50.0, "a command is no progress while there is work"
    engine.may_step.release()
    delivered.wait(lambda: delivered.reports[-1].stats.step == 1)
    health = thread.health()
    assert (health.is_busy, health.step, health.last_progress_time) == (True, 1, 60.0)
    engine.may_step.release()
    wait_until_idle(thread)
    assert thread.health().step == 2
    thread.stop()
    assert thread.join(HANG_S)


def test_turns_without_a_step_are_no_progress(engine: ScriptedEngine):
    """An engine whose scheduler never finds work makes no progress, as with a step that never ends."""
    turns = threading.Semaphore(0)
    times = iter(range(10**9))

    def empty_step(now: float) -> list[EngineEvent]:
        turns.release()
        return []

    engine.step = empty_step
    thread = EngineThread(make_config({}), build=lambda _: engine, clock=lambda: float(next(times)))
    thread.start(ReportCollector())
    thread.post(submit("a"))
    assert turns.acquire(timeout=HANG_S)
    before = thread.health()
    for _ in range(5):
        assert turns.acquire(timeout=HANG_S)
    assert thread.health() == before and before.is_busy
    thread.stop()
    assert thread.join(HANG_S)


def test_fail_marks_an_engine_as_failed_while_its_step_hangs(engine: ScriptedEngine):
    engine.may_step = threading.Semaphore(0)
    thread, delivered = EngineThread(make_config({}), build=lambda _: engine), ReportCollector()
    thread.start(delivered)
    thread.post(submit("a", max_tokens=10**9))
    assert engine.has_added.wait(HANG_S)
    num_reports = len(delivered.reports)
    error = EngineFailed("It hangs.")
    thread.fail(error)
    thread.fail(EngineFailed("A second reason is ignored."))
    assert thread.failure is error and thread.model_info() is None
    assert (thread.health().state, thread.health().message) == (EngineState.FAILED, "It hangs.")
    assert not thread.health().is_busy
    assert delivered.reports[num_reports:] == [StepReport((), EngineStats())], "the failure has one report"
    engine.may_step.release(10)
    assert thread.join(HANG_S), "the thread ends after its step"
    assert engine.num_steps == 1 and thread.failure is error
    assert thread.health().state is EngineState.FAILED


def test_fail_ends_the_thread_of_an_idle_engine(engine: ScriptedEngine):
    thread, delivered = EngineThread(make_config({}), build=lambda _: engine), ReportCollector()
    thread.start(delivered)
    delivered.wait_for(1)
    thread.fail(EngineFailed("It hangs."))
    assert thread.join(HANG_S)


def test_an_engine_that_gives_up_fails_with_its_reason(engine: ScriptedEngine, caplog):
    """For example after too many faults."""

    def give_up(now: float) -> list[EngineEvent]:
        raise EngineFailed("The engine has failed too often.")

    thread, delivered = EngineThread(make_config({}), build=lambda _: engine), ReportCollector()
    thread.start(delivered)
    thread.post(submit("a"))
    delivered.wait(lambda: engine.num_steps == 1)
    engine.step = give_up
    thread.post(submit("b"))
    assert thread.join(HANG_S)
    assert isinstance(thread.failure, EngineFailed)
    assert thread.health().state is EngineState.FAILED
    assert thread.health().message == "The engine has failed too often."
    assert delivered.reports[-1] == StepReport((), EngineStats(step=1)), "the counts are kept"
    assert "too often" in caplog.text and "Traceback" not in caplog.text
