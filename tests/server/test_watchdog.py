"""The watchdog: which engines and loops it declares stalled, and how a process that hangs ends."""

import asyncio
import json
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from app import cli
from app.config.settings import Config
from app.contract.engine_counts import QueueCounts
from app.contract.engine_status import EngineHealth, EngineState, EngineStats
from app.contract.errors import QuireError
from app.server.watchdog import EXIT_ENGINE_FAILED, Watchdog
from tests.house.source import ROOT
from tests.server.processes import HANG_S
from tests.server.quick_start import serving

TIMEOUT_S = 0.1
WAKEUPS = 30
"""Three times as many checks as it takes to fire."""


def keep_running(code: int) -> None:
    """Stay although the loop was blocked for `TIMEOUT_S`: busy machines do that, and these tests are about engines."""


class ScriptedEngine:
    """An engine thread whose health a test sets."""

    def __init__(self, **fields: object) -> None:
        self.now_health = EngineHealth(**({"state": EngineState.READY} | fields))
        self.failures: list[QuireError] = []

    def health(self) -> EngineHealth:
        """Return the health that the test set."""
        return self.now_health

    def fail(self, error: QuireError) -> None:
        """Record that the watchdog failed the engine."""
        self.failures.append(error)


class Countdown:
    """Counts the wake-ups of a watchdog, and keeps their lags."""

    def __init__(self, count: int, note: Callable[[int], None] = lambda num_left: None) -> None:
        self.lags_s: list[float] = []
        self._num_left = count
        self._note = note
        self._is_over = asyncio.Event()

    def __call__(self, lag_s: float) -> None:
        self.lags_s.append(lag_s)
        self._num_left -= 1
        self._note(self._num_left)
        if self._num_left <= 0:
            self._is_over.set()

    async def wait(self) -> None:
        """Wait until all were counted."""
        await asyncio.wait_for(self._is_over.wait(), HANG_S)


@asynccontextmanager
async def watching(watchdog: Watchdog) -> AsyncIterator[None]:
    """Run a watchdog for the time of a block."""
    task = asyncio.create_task(watchdog.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_exit_code_is_that_of_the_cli():
    assert EXIT_ENGINE_FAILED == cli.EXIT_ENGINE_FAILED


async def test_a_stalled_engine_is_failed_once(capfd):
    engine = ScriptedEngine(step=7, last_progress_time=3.0, is_busy=True)
    stats = EngineStats(queues=QueueCounts(2, 5))
    exits: list[int] = []
    wakeups = Countdown(WAKEUPS)
    watchdog = Watchdog(engine, TIMEOUT_S, stats=lambda: stats, observe_lag=wakeups, exit_process=exits.append)
    async with watching(watchdog):
        await wakeups.wait()
    assert watchdog.has_fired
    (failure,) = engine.failures
    assert failure.code == "engine_error"
    lines = capfd.readouterr().err.splitlines()
    reports = [json.loads(line) for line in lines if line.startswith("{")]
    (report,) = [report for report in reports if report["message"] == failure.message]
    assert (report["step"], report["running"], report["waiting"], report["state"]) == (7, 2, 5, "ready")
    assert report["level"] == "critical"
    assert set(report["versions"]) >= {"quire", "python"}
    assert any("Current thread" in line for line in lines)
    num_blocked = sum("event loop" in report["message"] for report in reports)
    assert len(exits) == num_blocked, "the server ends the process, as after every failure of the engine"


@pytest.mark.parametrize(
    "fields",
    [
        {"is_busy": False},
        {"is_busy": True, "state": EngineState.LOADING},
        {"is_busy": True, "state": EngineState.FAILED},
    ],
    ids=["idle", "loading", "failed"],
)
async def test_an_engine_without_work_is_never_failed(fields):
    wakeups = Countdown(WAKEUPS)
    engine = ScriptedEngine(**fields)
    async with watching(Watchdog(engine, TIMEOUT_S, observe_lag=wakeups, exit_process=keep_running)):
        await wakeups.wait()
    assert engine.failures == []


@pytest.mark.parametrize("field", ["step", "last_progress_time"])
async def test_an_engine_with_progress_is_never_failed(field):
    engine = ScriptedEngine(is_busy=True)

    def make_progress(num_left: int) -> None:
        if num_left % 4 == 0:
            engine.now_health = EngineHealth(EngineState.READY, is_busy=True, **{field: num_left})

    wakeups = Countdown(WAKEUPS, make_progress)
    async with watching(Watchdog(engine, TIMEOUT_S, observe_lag=wakeups, exit_process=keep_running)):
        await wakeups.wait()
    assert engine.failures == []


async def test_with_timeout_0_the_watchdog_only_measures_the_lag():
    engine = ScriptedEngine(is_busy=True)
    wakeups = Countdown(2)
    before = set(threading.enumerate())
    async with watching(Watchdog(engine, 0.0, observe_lag=wakeups)):
        await wakeups.wait()
        assert not set(threading.enumerate()) - before, "no thread watches the loop"
    assert engine.failures == []
    assert all(lag_s >= 0 for lag_s in wakeups.lags_s)


async def test_a_blocked_loop_is_detected_by_a_thread(capfd):
    """The loop waits for the watchdog by blocking."""
    has_exited = threading.Event()
    exits: list[int] = []

    def exit_process(code: int) -> None:
        exits.append(code)
        has_exited.set()

    async with watching(Watchdog(ScriptedEngine(), TIMEOUT_S, exit_process=exit_process)):
        await asyncio.sleep(0)
        assert has_exited.wait(HANG_S)
    assert exits == [EXIT_ENGINE_FAILED]
    line, *stacks = capfd.readouterr().err.splitlines()
    assert "event loop" in json.loads(line)["message"]
    assert any("test_a_blocked_loop_is_detected_by_a_thread" in each for each in stacks)


async def test_the_thread_ends_with_the_watchdog():
    wakeups = Countdown(1)
    before = set(threading.enumerate())
    async with watching(Watchdog(ScriptedEngine(), TIMEOUT_S, observe_lag=wakeups, exit_process=keep_running)):
        await wakeups.wait()
        (thread,) = set(threading.enumerate()) - before
    thread.join(HANG_S)
    assert not thread.is_alive()


# --- A server in a process of its own ---------------------------------------------------------------------------


def test_a_step_that_never_ends_fails_streams_and_livez_and_ends_the_process(tmp_path):
    log = tmp_path / "stderr"
    program = ("tests.server.hanging", "engine")
    with log.open("w") as file, serving("--watchdog-timeout", "2", program=program, stderr=file) as server:
        server.wait_until_ready()
        body = {"messages": [{"role": "user", "content": "a secret"}], "stream": True, "ignore_eos": True}
        with (
            httpx.Client(base_url=server.url, timeout=HANG_S) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
            assert client.get("/livez").status_code == 503
            assert client.get("/readyz").status_code == 503
            rejected = client.post("/v1/chat/completions", json=body)
        server.process.send_signal(signal.SIGUSR1)  # it has shown the failure for long enough
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_error"
        assert rejected.json()["error"]["code"] == "engine_error"
        assert server.end() == EXIT_ENGINE_FAILED
    text = log.read_text()
    (report,) = [json.loads(line) for line in text.splitlines() if '"quire.watchdog"' in line]
    assert (report["step"], report["running"]) == (2, 1)
    assert "in hang_for_ever" in text, "the stacks show where it hangs"
    assert "a secret" not in text


def test_a_blocked_event_loop_ends_the_process(tmp_path):
    log = tmp_path / "stderr"
    program = ("tests.server.hanging", "loop")
    with log.open("w") as file, serving("--watchdog-timeout", "2", program=program, stderr=file) as server:
        assert server.end() == EXIT_ENGINE_FAILED
    text = log.read_text()
    assert "event loop" in text and "in hang_for_ever" in text


def test_the_default_timeout_is_30_seconds_everywhere():
    """In the settings, and in every page, container or command that names one."""
    assert Config().server.watchdog_timeout == 30.0
    pages = [ROOT / "Dockerfile", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert set(re.findall(r"(?:--watchdog-timeout|QUIRE_WATCHDOG_TIMEOUT)[= ](\d+)", text)) <= {"30"}
    row = next(line for line in text.splitlines() if line.startswith("| `--watchdog-timeout`"))
    assert "| `30.0` |" in row
