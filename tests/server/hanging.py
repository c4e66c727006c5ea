"""A server that hangs on purpose: `python -m tests.server.hanging engine|loop|load [OPTIONS of quire serve]`.

`engine`: the third step never ends, and the server shows the failure until it gets SIGUSR1. `loop`: the event loop
blocks when it prints that the server is ready. `load`: the model loads until the server gets SIGUSR1.
"""

import signal
import sys
import threading

from app.commands import serve as command
from app.commands.options import Parser, read_config
from app.engine.faults import FaultPlan
from app.engine.thread import EngineThread
from app.observe.console import Console
from app.runtime.clock import monotonic
from app.server import lifecycle
from app.server.run import serve

HANGS_AT_LAUNCH = 3
LONG_S = 1e9


def hang_for_ever() -> None:
    """Wait for an event that is never set; the test finds this name in the stacks."""
    threading.Event().wait()


class HangingStep(FaultPlan):
    """A step that never ends."""

    def __init__(self) -> None:
        self._num_launches = 0

    def before_launch(self, plan: object) -> None:
        """See FaultPlan."""
        self._num_launches += 1
        if self._num_launches == HANGS_AT_LAUNCH:
            hang_for_ever()


class HangingConsole(Console):
    """Blocks the event loop after the ready line."""

    def print_line(self, line: str) -> None:
        """See Console."""
        super().print_line(line)
        if line.startswith("Ready"):
            hang_for_ever()


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


if __name__ == "__main__":
    parser = Parser(prog="hanging", description="")
    command.add_options(parser)
    config = read_config(parser.parse(sys.argv[2:]))
    if sys.argv[1] == "engine":
        show_failures_until_told()
        serve(config, Console(sys.stdout), faults=HangingStep())
    elif sys.argv[1] == "load":
        load_when_told()
        serve(config, Console(sys.stdout))
    else:
        serve(config, HangingConsole(sys.stdout))
