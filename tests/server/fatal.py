"""A server that one request ends: `python -m tests.server.fatal FILE [OPTIONS of quire serve]`.

Once FILE is there, the process is killed in each step that computes something of a request with the seed `FATAL_SEED`;
it writes a line into FILE before: how many other sequences the step has.
"""

import os
import signal
import sys
from pathlib import Path

from app.commands import serve as command
from app.commands.options import Parser, read_config
from app.engine.schedule.step_plan import StepPlan
from app.engine.thread import EngineThread
from app.observe.console import Console
from app.observe.log_writer import LogWriter
from app.server.run import serve
from tests.engine.execute.faulty_runner import FaultyRunner

FATAL_SEED = 666


class FatalStep(FaultyRunner):
    """A step that ends the process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._sequence_ids: set[int] = set()

    def before_launch(self, plan: StepPlan) -> None:
        self._sequence_ids |= {one.sequence_id for one in plan.row_starts if one.sampling.seed == FATAL_SEED}
        others = [each for each in plan.chunks.sequence_ids if each not in self._sequence_ids]
        if len(others) < len(plan.chunks) and self._file.exists():
            with self._file.open("a") as file:
                print(len(others), file=file)
            os.kill(os.getpid(), signal.SIGKILL)


def main(file: Path, arguments: list[str]) -> None:
    """Serve."""
    build = EngineThread._build_engine

    def build_fatal(thread: EngineThread, progress: object) -> object:
        engine = build(thread, progress)
        FatalStep(file).wrap(engine)
        return engine

    EngineThread._build_engine = build_fatal
    parser = Parser(prog="fatal", description="")
    command.add_options(parser)
    writer = LogWriter()
    serve(read_config(parser.parse(arguments)), Console(writer.stream(sys.stdout)), writer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
