"""The engine thread: loading, waking, one report per step, failure, end. Timeouts only end hanging tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from app.config.settings import make_config
from app.contract.engine_status import EngineState, EngineStats, StepReport
from app.contract.errors import ModelRefused
from app.contract.events import EngineEvent, Finished, FinishReason, TokenDelta
from app.contract.requests import Abort, EngineRequest, Pause, Resume, Submit
from app.contract.sampling_params import SamplingParams
from app.engine.build import build_engine
from app.engine.schedule.step_plan import StepPlan
from app.engine.thread import EngineThread
from tests.checkpoints import tiny
from tests.engine.driving import build, engine_thread, generate, request
from tests.engine.execute.faulty_runner import FaultyRunner
from tests.engine.scripted_engine import (
    HANG_S,
    MODEL_INFO,
    ReportCollector,
    ScriptedEngine,
    record_wait_timeouts,
    submit,
)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def thread(engine: ScriptedEngine) -> Iterator[EngineThread]:
    thread = EngineThread(make_config({}), build=lambda progress: engine)
    yield thread
    thread.stop()
    assert thread.join(HANG_S)


def test_health_reports_loading_then_ready():
    may_finish, has_reported = threading.Event(), threading.Event()

    def slow_build(progress: Callable[[float], None]) -> ScriptedEngine:
        progress(0.25)
        has_reported.set()
        assert may_finish.wait(HANG_S)
        return ScriptedEngine()

    thread, delivered = EngineThread(make_config({}), build=slow_build, clock=lambda: 7.0), ReportCollector()
    assert thread.health().state is EngineState.LOADING and thread.model_info() is None
    thread.start(delivered)
    assert has_reported.wait(HANG_S)
    health = thread.health()
    assert (health.state, health.progress, health.last_progress_time) == (EngineState.LOADING, 0.25, 7.0)
    assert thread.model_info() is None and delivered.reports == []
    may_finish.set()
    delivered.wait_for(1)
    assert thread.health().state is EngineState.READY and thread.health().progress == 1.0
    assert thread.model_info() == MODEL_INFO
    thread.stop()
    assert thread.join(HANG_S)


def test_commands_posted_while_loading_run_when_ready(thread: EngineThread, engine: ScriptedEngine):
    delivered = ReportCollector()
    thread.post(submit("a"))
    thread.start(delivered)
    delivered.wait_for(2)
    assert engine.calls == ["add a", "step"]


def test_each_step_has_one_report_with_counts_and_duration(engine: ScriptedEngine):
    times = iter(range(1000))
    thread, delivered = (
        EngineThread(make_config({}), build=lambda _: engine, clock=lambda: float(next(times))),
        ReportCollector(),
    )
    thread.start(delivered)
    thread.post(submit("a", max_tokens=5))
    delivered.wait_for(6)
    thread.stop()
    assert thread.join(HANG_S)
    assert engine.num_steps == 5 and len(delivered.reports) == 6
    assert [len(report.events) for report in delivered.reports] == [0, 1, 1, 1, 1, 1]
    assert [report.stats.step for report in delivered.reports] == [0, 1, 2, 3, 4, 5]
    step = delivered.reports[3]
    assert (step.num_prefill_tokens, step.num_decode_tokens, step.duration_s) == (3, 4, 1.0)
    assert thread.health().step == 5 and thread.health().last_progress_time > 0


def test_all_commands_run_before_the_next_step(thread: EngineThread, engine: ScriptedEngine):
    """So an abort takes effect within one step."""
    engine.may_step = threading.Semaphore(0)
    delivered = ReportCollector()
    thread.start(delivered)
    thread.post(submit("a", max_tokens=100))
    assert engine.has_added.wait(HANG_S)
    for command in (submit("b", 100), Pause("b"), Resume("b"), Abort("b"), Abort("a")):
        thread.post(command)
    engine.may_step.release(2)
    delivered.wait(lambda: "abort a" in engine.calls and len(delivered.reports) >= 3)
    first_abort = engine.calls.index("abort b")
    assert engine.calls[first_abort - 3 : first_abort + 2] == ["add b", "pause b", "resume b", "abort b", "abort a"]
    assert engine.calls.count("step") <= 2


def test_an_idle_engine_is_woken_only_by_commands(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch):
    """No wait has a timeout, so nothing polls; a command without work leads to no step."""
    timeouts = record_wait_timeouts(monkeypatch)
    thread, delivered = EngineThread(make_config({}), build=lambda _: engine), ReportCollector()
    thread.start(delivered)
    for count in range(1, 20):
        delivered.wait_for(count)
        thread.post(Abort("unknown"))
    delivered.wait_for(20)
    thread.stop()
    assert thread.join(HANG_S)
    assert engine.num_steps == 0 and len(delivered.reports) == 20
    assert timeouts and set(timeouts) == {threading.TIMEOUT_MAX}
    assert len(timeouts) <= 21, "the thread woke up without a command"


def test_a_rejected_model_is_a_failure_with_its_message(caplog: pytest.LogCaptureFixture):
    thread, delivered = EngineThread(make_config({"model": "/no/such/model"})), ReportCollector()
    thread.start(delivered)
    delivered.wait_for(1)
    assert thread.join(HANG_S)
    assert isinstance(thread.failure, ModelRefused)
    health = thread.health()
    assert health.state is EngineState.FAILED and "/no/such/model" in health.message
    assert delivered.reports == [StepReport((), EngineStats())]
    assert caplog.text == "", "who has started the thread tells the user, once"


class Panic(BaseException):
    """Like a panic in a native library: a BaseException, but no Exception."""


@pytest.mark.parametrize("kind", [ZeroDivisionError, Panic])
def test_an_exception_outside_of_a_step_fails_the_engine(engine: ScriptedEngine, kind, caplog):
    def explode(now: float) -> list[EngineEvent]:
        raise kind("internal bug")

    engine.step = explode
    thread, delivered = EngineThread(make_config({}), build=lambda _: engine), ReportCollector()
    thread.start(delivered)
    thread.post(submit("a"))
    assert thread.join(HANG_S)
    assert thread.health().state is EngineState.FAILED
    assert thread.failure.code == "engine_error" and "internal bug" in thread.failure.message
    assert "internal bug" not in thread.health().message, "internal errors are only in the log"
    assert "Traceback" in caplog.text
    assert thread.model_info() is None
    num_reports = len(delivered.reports)
    for command in (submit("b"), Abort("a"), Pause("a"), Resume("a")):
        thread.post(command)
    thread.stop()
    assert thread.join(0) and len(delivered.reports) == num_reports


def test_stop_aborts_loading():
    loading = threading.Event()

    def load_for_ever(progress: Callable[[float], None]) -> ScriptedEngine:
        for _ in range(10**9):
            progress(0.5)
            loading.set()
        raise AssertionError

    thread, delivered = EngineThread(make_config({}), build=load_for_ever), ReportCollector()
    thread.start(delivered)
    assert loading.wait(HANG_S)
    thread.stop()
    assert thread.join(HANG_S)
    assert thread.failure is None and delivered.reports == []


def test_stop_runs_the_commands_posted_before(engine: ScriptedEngine):
    thread, delivered = EngineThread(make_config({}), build=lambda _: engine), ReportCollector()
    thread.start(delivered)
    delivered.wait_for(1)
    thread.post(submit("a", max_tokens=10**9))
    thread.post(Abort("a"))
    thread.stop()
    assert thread.join(HANG_S)
    assert {"add a", "abort a"} <= set(engine.calls)
    assert thread.join(0), "a second join is harmless"


def test_stop_ends_a_busy_engine_after_its_step(engine: ScriptedEngine):
    engine.may_step = threading.Semaphore(0)
    thread, delivered = EngineThread(make_config({}), build=lambda _: engine), ReportCollector()
    thread.start(delivered)
    thread.post(submit("a", max_tokens=10**9))
    assert engine.has_added.wait(HANG_S)
    assert not thread.join(0), "join returns that it has not ended"
    thread.stop()
    engine.may_step.release(5)
    assert thread.join(HANG_S)
    assert engine.num_steps <= 2


def test_a_thread_that_never_started_has_ended():
    assert EngineThread(make_config({})).join(0)


# --- With the real engine --------------------------------------------------------------------------------------


class FailAt(FaultyRunner):
    """Raises at one launch."""

    def __init__(self, launch: int) -> None:
        self.num_left = launch

    def before_launch(self, plan: StepPlan) -> None:
        self.num_left -= 1
        if self.num_left == 0:
            raise RuntimeError("a fault")


def test_a_fault_changes_no_token_of_the_real_engine(caplog: pytest.LogCaptureFixture):
    folder = tiny("Qwen3")
    reference = build(folder)
    requests = [request(reference, f"r{i}", range(10 + i, 30 + i), temperature=0.7, seed=i) for i in range(4)]
    expected = generate(reference, requests)
    config = make_config({"model": str(folder), "num_kv_blocks": 64, "max_num_seqs": 2})
    thread, delivered = engine_thread(config, FailAt(9)), ReportCollector()
    thread.start(delivered)
    thread.post(Submit(requests[0]))
    thread.post(Submit(requests[1]))
    thread.post(Submit(requests[2]))
    delivered.wait_for_ends("r0", "r1", "r2")
    thread.post(Submit(requests[3]))
    delivered.wait_for_ends("r3")
    for each in requests:
        deltas = [e for e in delivered.events if isinstance(e, TokenDelta) and e.request_id == each.id]
        assert [token_id for delta in deltas for token_id in delta.token_ids] == expected[each.id]
    assert thread.health().state is EngineState.READY and thread.model_info() is not None
    stats = delivered.reports[-1].stats
    assert stats.recovery.num_faults == 1 and stats.recovery.num_culprits == 0
    assert stats.blocks.num_free == stats.blocks.num_blocks == 64
    thread.stop()
    assert thread.join(HANG_S)


def test_an_abort_of_a_real_request_frees_its_blocks_within_one_step():
    config = make_config({"model": str(tiny("Llama")), "num_kv_blocks": 64})
    thread, delivered = (
        EngineThread(config, build=lambda progress: build_engine(config, progress=progress)),
        ReportCollector(),
    )
    thread.start(delivered)
    long = SamplingParams(max_tokens=400, seed=0, temperature=0.0, ignore_eos=True)
    thread.post(Submit(EngineRequest("long", tuple(range(10, 60)), long, 0.0)))
    delivered.wait(lambda: any(isinstance(event, TokenDelta) for event in delivered.events))
    thread.post(Abort("long"))
    delivered.wait_for_ends("long")
    thread.stop()
    assert thread.join(HANG_S)
    (last,) = [report for report in delivered.reports if any(isinstance(e, Finished) for e in report.events)]
    assert last.events[-1].reason is FinishReason.CANCELLED
    assert last.stats.blocks.num_free == 64 and last.stats.queues.num_running == 0
