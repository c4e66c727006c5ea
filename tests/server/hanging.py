"""A server that hangs on purpose: `python -m tests.server.hanging engine|loop [OPTIONS of quire serve]`.

`engine`: the third step never ends. `loop`: the event loop blocks when it prints that the server is ready.
"""

import sys
import threading

from app.commands import serve as command
from app.commands.options import Parser, read_config
from app.engine.faults import FaultPlan
from app.observe.console import Console
from app.server.run import serve

HANGS_AT_LAUNCH = 3


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


if __name__ == "__main__":
    parser = Parser(prog="hanging", description="")
    command.add_options(parser)
    config = read_config(parser.parse(sys.argv[2:]))
    if sys.argv[1] == "engine":
        serve(config, Console(sys.stdout), faults=HangingStep())
    else:
        serve(config, HangingConsole(sys.stdout))
