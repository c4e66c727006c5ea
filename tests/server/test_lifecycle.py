"""The lifecycle of a server with a scripted engine: the lines it prints, and how it ends."""

import asyncio
import queue
import signal
import sys

import pytest

from app.config.settings import Config
from app.contract.engine_status import EngineState
from app.contract.errors import QuireError
from app.contract.events import RequestFailed
from app.contract.requests import Abort
from app.observe.console import Console
from app.observe.log_writer import LogWriter
from app.runtime.start_timings import StartTimings
from app.server import lifecycle, process_end
from app.server.lifecycle import Server
from app.server.process_end import SIGNALS, ProcessEnd
from app.server.run import uvicorn_config
from app.server.sockets import listen
from app.server.watchdog import Watchdog
from app.streaming.async_engine import AsyncEngine
from app.streaming.drain import Drain
from app.streaming.session import Session
from app.streaming.streams import Streams
from tests.fakes import FakePort, make_request, submit

HANG_S = 60


async def app(scope, receive, send):
    """An application that handles only the lifespan."""
    assert scope["type"] == "lifespan"
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


class WatchedPort:
    """The watchdog's view of a scripted engine, which must not fail here."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.health = engine.health

    def fail(self, error: QuireError) -> None:
        raise AssertionError(error)


class RecordingConsole(Console):
    """Keeps the printed lines and the status lines."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.lines: list[str] = []
        self.statuses: list[str] = []
        self.changed = asyncio.Event()

    def print_line(self, line: str) -> None:
        self.lines.append(line)
        self.changed.set()

    def show_status(self, line: str) -> None:
        self.statuses.append(line)
        self.changed.set()


class RunningServer:
    """A server on a scripted engine."""

    def __init__(
        self,
        port: FakePort,
        *,
        drain_timeout_s: float = HANG_S,
        prints_timings: bool = False,
    ) -> None:
        self.port = port
        self.console = RecordingConsole()
        self.lines, self.statuses = self.console.lines, self.console.statuses
        self.is_watched = asyncio.Event()
        self.streams = Streams()
        self.engine = AsyncEngine(port, Config())
        self.exits: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.writer = LogWriter()
        drain = Drain(self.engine, self.streams)
        self.process_end = ProcessEnd(
            self.console,
            self.writer,
            drain_timeout_s,
            num_open=lambda: drain.num_open,
            exit_code=lambda: 0,
            exit_process=self.exits.put,
        )
        self.server = Server(
            uvicorn_config(app, Config()),
            self.engine,
            watchdog=Watchdog(WatchedPort(self.engine), 0.0, observe_lag=self._note_lag),
            process_end=self.process_end,
            drain=drain,
            drain_timeout_s=drain_timeout_s,
            console=self.console,
            listening_line="listening",
            ready_line=lambda: "ready",
            timings=StartTimings(),
            prints_timings=prints_timings,
        )
        self.task = asyncio.create_task(self.server.serve([listen("127.0.0.1", 0)]))

    def _note_lag(self, lag_s: float) -> None:
        self.is_watched.set()

    async def until(self, line: str) -> None:
        """Wait for a line or a status that starts with `line`."""
        async with asyncio.timeout(HANG_S):
            while not any(shown.startswith(line) for shown in (*self.lines, *self.statuses)):
                self.console.changed.clear()
                await self.console.changed.wait()

    async def end(self) -> None:
        """Wait until the server has ended."""
        async with asyncio.timeout(HANG_S):
            await self.task
        self.process_end.close()
        self.writer.close()


@pytest.fixture(autouse=True)
def no_killed_children(monkeypatch):
    """The children of this process belong to other tests."""
    monkeypatch.setattr(process_end, "kill_children", lambda: None)


@pytest.fixture(autouse=True)
def no_wait_after_failure(monkeypatch):
    """The server ends as soon as its engine has failed, unless a test sets another time."""
    monkeypatch.setattr(lifecycle, "FAILURE_SHOWN_S", 0.0)


async def test_listening_load_progress_and_readiness_are_printed():
    running = RunningServer(FakePort(state=EngineState.LOADING))
    await running.until("Loading the model: 50%")
    running.port.state = EngineState.READY
    await running.until("ready")
    assert (running.lines, set(running.statuses)) == (["listening", "ready"], {"Loading the model: 50%"})
    signal.raise_signal(signal.SIGTERM)
    await running.end()


async def test_startup_timings_are_printed_before_the_ready_line():
    running = RunningServer(FakePort(), prints_timings=True)
    await running.until("ready")
    listening, table, ready = running.lines
    assert (listening, ready) == ("listening", "ready")
    assert "open_server" in table
    signal.raise_signal(signal.SIGTERM)
    await running.end()


async def test_a_failed_engine_ends_the_server():
    running = RunningServer(FakePort())
    await running.until("ready")
    running.port.state = EngineState.FAILED
    await running.end()
    assert running.server.has_failed


async def test_a_server_with_a_failed_engine_keeps_running_for_a_while(monkeypatch):
    monkeypatch.setattr(lifecycle, "FAILURE_SHOWN_S", HANG_S)
    running = RunningServer(FakePort())
    await running.until("ready")
    running.port.state = EngineState.FAILED
    for _ in range(2):
        assert not await running.server.on_tick(0)
    assert running.server.has_failed and not running.server.should_exit
    signal.raise_signal(signal.SIGTERM)
    await running.end()
    assert running.server.has_failed, "a signal ends the wait, and the exit is still a failure"


async def test_a_server_whose_engine_fails_while_loading_ends_at_once(monkeypatch):
    monkeypatch.setattr(lifecycle, "FAILURE_SHOWN_S", HANG_S * 10)
    running = RunningServer(FakePort(state=EngineState.LOADING))
    await running.until("listening")
    running.port.state = EngineState.FAILED
    await running.end()
    assert running.server.has_failed


async def test_the_watchdog_runs_until_the_sockets_are_closed():
    running = RunningServer(FakePort())
    await asyncio.wait_for(running.is_watched.wait(), HANG_S)
    watching = running.server._watchdog_task
    signal.raise_signal(signal.SIGTERM)
    await running.end()
    await asyncio.gather(watching, return_exceptions=True)
    assert watching.cancelled()


@pytest.mark.parametrize("number", SIGNALS)
async def test_after_a_signal_the_server_waits_for_open_requests(number):
    port = FakePort()
    running = RunningServer(port)
    await running.until("ready")
    answer = submit(running.engine, make_request(max_tokens=3))
    port.step()
    assert await answer.get()
    signal.raise_signal(number)
    await running.until("Shutting down")
    assert running.engine.health().state is EngineState.DRAINING
    assert not running.server.should_exit
    while port.num_open or port.has_work:
        port.step()
    assert await answer.get()
    await running.end()
    assert not running.server.has_failed


async def test_on_sigterm_requests_without_a_token_may_finish():
    port = FakePort()
    running = RunningServer(port)
    await running.until("ready")
    answer = submit(running.engine, make_request(max_tokens=3))
    signal.raise_signal(signal.SIGTERM)
    await running.until("Shutting down")
    while port.num_open or port.has_work:
        port.step()
    assert not any(isinstance(event, RequestFailed) for event in await answer.get())
    await running.end()


async def test_on_ctrl_c_requests_without_a_token_fail_with_draining():
    port = FakePort()
    running = RunningServer(port, drain_timeout_s=10 * HANG_S)
    await running.until("ready")
    answer = submit(running.engine, make_request(max_tokens=3))
    signal.raise_signal(signal.SIGINT)
    (failed,) = await asyncio.wait_for(answer.get(), HANG_S)
    assert isinstance(failed, RequestFailed)
    assert (failed.error.code, failed.error.http_status) == ("draining", 503)
    assert "not begun" in failed.error.message
    await running.end()
    assert [type(command) for command in port.posted if isinstance(command, Abort)] == [Abort]


async def test_the_drain_shows_the_number_of_open_requests_and_the_remaining_time():
    port = FakePort()
    running = RunningServer(port)
    await running.until("ready")
    session = Session(running.engine, make_request(max_tokens=3), streams=running.streams)
    session.open()
    port.step()
    signal.raise_signal(signal.SIGINT)
    await running.until(f"Finishing 1 open request, at most {HANG_S} s. Press Ctrl-C again to stop now.")
    session.close()
    while port.num_open or port.has_work:
        port.step()
    await running.end()


async def test_requests_that_exceed_the_drain_timeout_are_aborted():
    running = RunningServer(FakePort(), drain_timeout_s=0.0)
    await running.until("ready")
    answer = submit(running.engine, make_request(max_tokens=3))
    signal.raise_signal(signal.SIGTERM)
    await running.end()
    assert await answer.get()


async def test_a_second_signal_exits_at_once():
    running = RunningServer(FakePort(), drain_timeout_s=10 * HANG_S)
    await running.until("ready")
    submit(running.engine, make_request(max_tokens=3))
    signal.raise_signal(signal.SIGTERM)
    await running.until("Shutting down")
    signal.raise_signal(signal.SIGINT)
    assert running.exits.get(timeout=HANG_S) == 0, "the loop, which waits here, is not needed"
    await running.engine.close()
    await running.end()
