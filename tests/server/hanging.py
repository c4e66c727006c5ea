"""A server that hangs on purpose: `python -m tests.server.hanging KIND [OPTIONS of quire serve]`.

`engine`: the third step never ends, and the server shows the failure until it gets SIGUSR1. `loop`: the event loop
blocks when it prints that the server is ready. `flood`: the same after 5,000 lines of the log. `load`: the model loads
until the server gets SIGUSR1. `text`: a thread that reads a request works for ever. `child`: a child process runs for
ever; its number is in the log. `log`: nothing hangs, and 100 lines of the log may wait for their reader. `folders`:
nothing hangs, and neither the cache nor a temporary folder can be written.

What hangs says so on stderr before, but for the loop.
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading

from app.commands import serve as command
from app.commands.options import Parser, read_config
from app.engine.thread import EngineThread
from app.observe.console import Console
from app.observe.log_writer import LogWriter
from app.runtime.clock import monotonic
from app.server import lifecycle
from app.server.run import serve
from app.text.entry.request_builder import RequestBuilder
from tests.engine.execute.faulty_runner import FaultyRunner

HANGS_AT_LAUNCH = 3
LONG_S = 1e9
READY = "Ready: "


def hang_for_ever() -> None:
    """Wait for an event that is never set; the test finds this name in the stacks."""
    print("hangs", file=sys.stderr, flush=True)
    threading.Event().wait()


class HangingStep(FaultyRunner):
    """A step that never ends."""

    def __init__(self) -> None:
        self._num_launches = 0

    def before_launch(self, plan: object) -> None:
        self._num_launches += 1
        if self._num_launches == HANGS_AT_LAUNCH:
            hang_for_ever()


def hang_in_a_step() -> None:
    """Let a step of the engine never end."""
    build = EngineThread._build_engine

    def build_hanging(thread: EngineThread, progress: object) -> object:
        engine = build(thread, progress)
        HangingStep().wrap(engine)
        return engine

    EngineThread._build_engine = build_hanging


class HangingConsole(Console):
    """Blocks the event loop after the ready line."""

    def print_line(self, line: str) -> None:
        super().print_line(line)
        if READY in line:
            hang_for_ever()


class FloodingConsole(HangingConsole):
    """Writes more lines than a pipe and the queue of the log have room for, then blocks the event loop."""

    def print_line(self, line: str) -> None:
        for number in range(5000 if READY in line else 0):
            logging.getLogger("test").info("line %d", number)
        super().print_line(line)


def show_failures_until_told() -> None:
    """Show a failure until SIGUSR1, and not for a time, in which a busy machine may not come to ask for it."""

    def end(number: int, frame: object) -> None:
        lifecycle.FAILURE_SHOWN_S = 0.0  # of a failure that the server has not noticed yet
        lifecycle.monotonic = lambda: monotonic() + LONG_S

    lifecycle.FAILURE_SHOWN_S = LONG_S
    signal.signal(signal.SIGUSR1, end)


def load_when_told() -> None:
    """Let the engine begin to load on SIGUSR1."""
    is_told, build = threading.Event(), EngineThread._build_engine

    def build_later(thread: EngineThread, progress: object) -> object:
        is_told.wait()
        return build(thread, progress)

    EngineThread._build_engine = build_later
    signal.signal(signal.SIGUSR1, lambda number, frame: is_told.set())


def start_child() -> None:
    """Start a child process that reads from a pipe which nobody closes."""
    reader, _ = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=reader)
    print(f"child {child.pid}", file=sys.stderr, flush=True)


def main(kind: str, arguments: list[str]) -> None:
    """Serve."""
    parser = Parser(prog="hanging", description="")
    command.add_options(parser)
    config = read_config(parser.parse(arguments))
    writer = LogWriter(100) if kind == "log" else LogWriter()
    console = {"loop": HangingConsole, "flood": FloodingConsole}.get(kind, Console)(writer.stream(sys.stdout))
    match kind:
        case "engine":
            show_failures_until_told()
            hang_in_a_step()
        case "load":
            load_when_told()
        case "text":
            RequestBuilder.answer = lambda *arguments, **fields: hang_for_ever()
        case "child":
            start_child()
        case "folders":
            os.environ["XDG_CACHE_HOME"] = "/proc/none"
            tempfile._candidate_tempdir_list = list
    serve(config, console, writer)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
