"""`python -m benchmarks cpu`: this machine, Quire, and each installed peer, on the same weights, turn by turn.

The peers are set up by `make peers` in a checkout of Quire; without them it tells Quire's own figures and how near they
are to what the machine allows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from app.commands.measuring.machine import cpu_features, cpu_name, describe_run
from app.commands.measuring.workload import SHAPES
from app.commands.options import Parser
from app.contract.errors import ConfigurationError
from app.loadgen import plots
from app.observe.terminal import own_terminal
from app.runtime.cores import num_cores
from benchmarks.busy_cores import busy_cores
from benchmarks.cpu.cells import CELLS, FORMATS, PEER_NAMES
from benchmarks.cpu.chart import chart
from benchmarks.cpu.figures import Figures
from benchmarks.cpu.gguf import cells as gguf_cells
from benchmarks.cpu.gguf import command as gguf
from benchmarks.cpu.report import bars, machine_line, report
from benchmarks.cpu.rounds import Plan, Rounds
from benchmarks.cpu.sides import PEERS, Opener, missing_peers
from benchmarks.figures import write_json
from benchmarks.limits import conclude
from benchmarks.options import chosen, make_folder
from benchmarks.stopping import stopped_by_signals

ROUNDS, MIXED_ROUNDS = 5, 3
QUICK_ROUNDS, QUICK_MIXED_ROUNDS, QUICK_SHAPES = 2, 1, ("s135", "tiny")
MAX_BUSY_CORES = 0.2


def add_options(parser: Parser) -> None:
    """Add what can be left out, how often, and where the figures go."""
    parser.add_argument(
        "--gguf", action="store_true", help="Measure GGUF files beside llama.cpp instead, some twenty minutes."
    )
    parser.add_argument(
        "--families",
        action="store_true",
        help="Measure GGUF files of dummy weights, in the shapes of other families and of mixtures of experts, beside "
        "llama.cpp instead, some fifteen minutes. They take up to 6 GB of disk, and both sides 18 GB of memory.",
    )
    parser.add_argument(
        "--shapes",
        metavar="NAMES",
        help=f"Models, comma-separated, of {', '.join(SHAPES)}; with --gguf of {', '.join(gguf_cells.SHAPES)}; with "
        f"--families of {', '.join(gguf_cells.FAMILIES.formats)}.",
    )
    parser.add_argument(
        "--dtypes",
        metavar="NAMES",
        help=f"Number formats, comma-separated, of {', '.join(FORMATS)}; with --gguf of "
        f"{', '.join(gguf_cells.FORMATS)}.",
    )
    parser.add_argument(
        "--sets", metavar="NAMES", help=f"With --gguf: instructions of the CPU, of {', '.join(gguf_cells.SETS)}."
    )
    parser.add_argument("--rounds", type=int, metavar="N", help=f"Rounds of each cell, default {ROUNDS}.")
    parser.add_argument(
        "--only", metavar="NAMES", help=f"Measure only these, comma-separated, of quire, {', '.join(PEER_NAMES)}."
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds of {' and '.join(QUICK_SHAPES)}: some six minutes."
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="Folder for cpu.json and cpu.svg, default this one."
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the figures; exit code 1 where Quire is not as fast as required."""
    if args.gguf or args.families:
        return run_gguf(args, gguf_cells.FAMILIES if args.families else gguf_cells.GGUF)
    missing = missing_peers()
    plan, left_out = make_plan(args, missing)
    make_folder(args.out, "out")
    busy = busy_cores(0.5)
    described = {**about(busy), "rounds": plan.rounds, "mixed_rounds": plan.mixed_rounds}
    figures = Figures(described, left_out=left_out)
    for line in left_out:
        print(line)
    if busy > MAX_BUSY_CORES:
        print(f"Other programs use {busy:.1f} cores: the figures will tell little. Better on a quiet machine.")
    sys.stdout.flush()
    with _folder() as folder, stopped_by_signals(), tqdm(total=plan.num_turns, unit="turn") as bar:
        progress = Progress(bar, figures, args.out)
        try:
            Rounds(plan, Opener(folder), partial(checkpoint, folder), figures, progress).run()
        finally:
            bar.close()
            progress.part_done()
            print_report(figures)
    print(f"\n{plots.written(args.out / 'cpu.json', args.out / 'cpu.svg')}")
    return conclude(figures.verdicts(), ["Quire itself failed"] if figures.has_failed else [])


def run_gguf(args: argparse.Namespace, subject: gguf_cells.Subject) -> int:
    """Measure GGUF files; --only is not for them, and neither are some shapes and dtypes."""
    if args.only is not None:
        raise ConfigurationError("--only is not for --gguf and --families, which always compare Quire with llama.cpp")
    plan = gguf.make_plan(subject, args.shapes, args.dtypes, args.sets, rounds_of(args))
    make_folder(args.out, "out")
    return gguf.run(args, subject, plan, about(busy_cores(0.5)))


class Progress:
    """Shows what is going on, and writes the figures after each cell, so that a stop loses nothing."""

    def __init__(self, bar: tqdm, figures: Figures, out: Path) -> None:
        self._bar, self._figures, self._out = bar, figures, out
        self._num_said = 0

    def begin(self, what: str) -> None:
        """Show what begins."""
        self._bar.set_description(what)

    def turn_done(self) -> None:
        """Count one measurement."""
        self._bar.update()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.write(line)

    def part_done(self) -> None:
        """Print the newest comparisons; write what there is."""
        ratios = list(self._figures.ratios())
        for ratio in ratios[self._num_said :]:
            self.say(str(ratio))
        self._num_said = len(ratios)
        found = self._figures.to_json()
        write_json(self._out / "cpu.json", found)
        plots.save(chart(found), self._out / "cpu.svg")


def make_plan(args: argparse.Namespace, missing: dict[str, str]) -> tuple[Plan, list[str]]:
    """Return the cells to measure, and one line for each thing that is left out.

    Raises:
        ConfigurationError: an unknown name, or nothing to measure.
    """
    shapes = QUICK_SHAPES if args.quick and args.shapes is None else chosen(args.shapes, tuple(SHAPES), "shapes")
    formats = chosen(args.dtypes, tuple(FORMATS), "dtypes")
    asked = chosen(args.only, ("quire", *PEER_NAMES), "only")
    if args.sets is not None:
        raise ConfigurationError("--sets is for --gguf and --families only")
    rounds = rounds_of(args)
    left_out = [f"{name} is left out: {missing[name]}" for name in asked if name in missing]
    cells = [cell for cell in CELLS if cell.shape in shapes and cell.format in formats]
    if not cells:
        raise ConfigurationError("nothing is left to measure: no cell has one of these --shapes and one of --dtypes")
    mixed_rounds = min(rounds, QUICK_MIXED_ROUNDS if args.quick else MIXED_ROUNDS)
    return Plan(cells, rounds, mixed_rounds, frozenset(asked) - set(missing) - {"quire"}), left_out


def rounds_of(args: argparse.Namespace) -> int:
    """Return how often a cell is measured.

    Raises:
        ConfigurationError: not even once.
    """
    rounds: int = (QUICK_ROUNDS if args.quick else ROUNDS) if args.rounds is None else args.rounds
    if rounds < 1:
        raise ConfigurationError(f"--rounds is {rounds}; it must be at least 1")
    return rounds


def about(busy: float) -> dict[str, Any]:
    """Describe the run: when, on what, with which versions."""
    found = describe_run(("torch", "transformers"))
    features = sorted(name for name in cpu_features() if name.startswith(("avx", "amx", "fma")))
    found["machine"] |= {"features": features, "busy_cores_before": round(busy, 2)}
    found["versions"] |= {"peers": _peer_versions()}
    return found


def print_report(figures: Figures) -> None:
    """Print tables, bars, what the machine can do, and what was missed."""
    sys.stderr.flush()
    terminal = own_terminal()
    for line in [*report(figures, terminal), *bars(figures, terminal)]:
        print(line)
    if figures.machine is not None:
        print(f"\n{cpu_name()}, {num_cores()} cores: {machine_line(figures.machine)}")
    sys.stdout.flush()


def checkpoint(folder: Path, shape: str) -> Path:
    """Return the folder of a shape's weights; they are written the first time."""
    from benchmarks.cpu.weights import write_checkpoint

    model = folder / shape
    if not model.exists():
        with tempfile.TemporaryDirectory(dir=folder) as part:
            write_checkpoint(shape, Path(part) / shape).rename(model)
    return model


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield where the weights are: kept beside the peers, which compile for what they load, else for this run only."""
    if PEERS.is_dir():
        folder = PEERS / "models"
        folder.mkdir(exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as name:
        yield Path(name)


def _peer_versions() -> list[str]:
    file = PEERS / "versions"
    return file.read_text().splitlines() if file.exists() else []
