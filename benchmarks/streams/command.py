"""`python -m benchmarks streams`: the cost of the streaming path without the model.

A server and its clients run in processes of their own, over a scripted engine with known tokens; then with the embedded
model. Each cell has a new server.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from app.commands.measuring.machine import describe_run
from app.commands.options import Parser
from app.contract.errors import CannotStart, ConfigurationError
from app.loadgen import plots
from app.observe.terminal import own_terminal
from app.runtime.process_limits import raise_file_limit
from benchmarks.busy_cores import busy_cores
from benchmarks.figures import write_json
from benchmarks.limits import conclude
from benchmarks.options import chosen, make_folder
from benchmarks.side import SideFailed
from benchmarks.stopping import stopped_by_signals
from benchmarks.streams.cells import make_cells
from benchmarks.streams.chart import chart
from benchmarks.streams.figures import CellFigures, Figures
from benchmarks.streams.pinning import available_cores, share_cores
from benchmarks.streams.report import progress_line, report
from benchmarks.streams.rounds import Setup, measure

SECONDS, STREAMS, RATE = 10.0, 1000, 5.0
MAX_STREAMS = 2000  # of a kind: a server runs no more than 4,096 sequences
MAX_BUSY_CORES = 0.2
PACKAGES = ("uvicorn", "uvloop", "httptools", "websockets", "starlette", "orjson")


def add_options(parser: Parser) -> None:
    """Add the options: cells, streams, rate, seconds, rounds and output."""
    known = ", ".join(cell.name for cell in make_cells(STREAMS, RATE))
    parser.add_argument("--only", metavar="CELLS", help=f"Cells, comma-separated, of {known}; default all.")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="SECONDS", help=f"Length of a window, default {SECONDS:g}."
    )
    parser.add_argument(
        "--streams",
        type=int,
        default=STREAMS,
        metavar="N",
        help=f"Streams of each kind side by side, default {STREAMS}; alone half as many, a fifth with slow clients.",
    )
    parser.add_argument(
        "--rate", type=float, default=RATE, metavar="RATE", help=f"Tokens per second of a stream, default {RATE:g}."
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="Rounds of all cells, default 1.")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="Folder for streams.json and streams.svg, by default none is written.",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the figures; exit code 1 if a limit is missed or a cell failed."""
    _check(args)
    cells = {cell.name: cell for cell in make_cells(args.streams, args.rate)}
    names = chosen(args.only, list(cells), "only")
    if not sys.platform.startswith("linux"):
        raise CannotStart("`python -m benchmarks streams` reads /proc; run it on Linux.")
    if args.output is not None:
        make_folder(args.output, "output")
    raise_file_limit()
    busy = busy_cores(0.5)
    if busy > MAX_BUSY_CORES:
        _say(f"Other programs use {busy:.1f} cores: the figures are not reliable. Use a quiet machine.")
    figures = Figures(about(args, busy), [CellFigures(cells[name]) for name in names])
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder, stopped_by_signals():
        setup = Setup(args.seconds, share_cores(available_cores()), Path(folder))
        try:
            measure_all(figures, args.repeat, setup)
        finally:
            save(figures, args.output)
            print("\n".join(report(figures, own_terminal())), flush=True)
    if args.output is not None:
        print(f"\n{plots.written(args.output / 'streams.json', args.output / 'streams.svg')}")
    return conclude(figures.verdicts(), [f"{name}: {says}" for name, says in figures.failures.items()])


def measure_all(figures: Figures, repeat: int, setup: Setup) -> None:
    """Run all cells `repeat` times; a failed cell is reported and does not affect others."""
    for turn in range(1, repeat + 1):
        for found in figures.cells:
            cell = found.cell
            try:
                found.runs.append(measure(cell, setup))
            except SideFailed as error:
                figures.failures[f"{cell.name} {turn}"] = str(error)
                _say(f"quire: error: {cell.name}: {error}")
                continue
            _say(f"{turn}/{repeat} {progress_line(found)}")


def about(args: argparse.Namespace, busy: float) -> dict[str, Any]:
    """Describe the run: time, machine and versions."""
    found = describe_run(PACKAGES)
    found["machine"] |= {"busy_cores_before": round(busy, 2)}
    return found | {name: getattr(args, name) for name in ("seconds", "streams", "rate", "repeat")}


def save(figures: Figures, output: Path | None) -> None:
    """Write the figures so far, if there is a folder for them."""
    if output is not None:
        found = figures.to_json()
        write_json(output / "streams.json", found)
        plots.save(chart(found), output / "streams.svg")


def _check(args: argparse.Namespace) -> None:
    if not 1 <= args.streams <= MAX_STREAMS:
        raise ConfigurationError(f"--streams is {args.streams}; it must be between 1 and {MAX_STREAMS}")
    if args.repeat < 1:
        raise ConfigurationError(f"--repeat is {args.repeat}; it must be at least 1")
    if not 0.1 <= args.seconds <= 3600:
        raise ConfigurationError(f"--seconds is {args.seconds:g}; it must be between 0.1 and 3600")
    if not 0.1 <= args.rate <= 1000:
        raise ConfigurationError(f"--rate is {args.rate:g}; it must be between 0.1 and 1000 tokens per second")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
