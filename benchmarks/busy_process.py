"""The cost of another program that uses one core all the time: `python -m benchmarks busy_process [--rounds N]`.

Decodes 1, 8 and 32 sequences of the s135 and q05 shapes (random weights, 128 tokens in, 64 out) alone, then beside a
process that never sleeps on one of the cores, then alone again; in turn, several rounds. Then the model is loaded
beside one such process per core, and measured when they are gone. vLLM takes part where `make peers` has set it up.

Exits 1 if Quire keeps less than the limit, is slower afterwards than before, or is slower than vLLM beside the same
process.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from app.commands.options import Parser
from benchmarks.cpu.cells import OURS, Cell
from benchmarks.cpu.command import checkpoint
from benchmarks.cpu.sides import GeneratingSide, Opener, missing_peers
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.stopping import stopped_by_signals

SHAPES, BATCHES, FORMAT = ("s135", "q05"), (1, 8, 32), "bf16"
QUIET, BESIDE, AFTER = "alone", "beside one", "afterwards"

Rates = dict[tuple[str, str], list[float]]
"""Tokens per second of every round, by side and by `QUIET`, `BESIDE` or `AFTER`."""


@contextmanager
def busy_processes(cores: Sequence[int]) -> Iterator[None]:
    """Run a process that never sleeps on each of these cores for the time of the block."""
    with ExitStack() as stack:
        for core in cores:
            # A session of its own, as another user's program has: the system divides cores among sessions.
            busy = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
            process = subprocess.Popen([sys.executable, "-c", busy], start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def measure(sides: Sequence[GeneratingSide], cell: Cell, rounds: int, core: int) -> Rates:
    """Return the decode rates of all sides."""
    rates: Rates = {}
    for turn in range(rounds):
        for name, cores in ((QUIET, []), (BESIDE, [core]), (AFTER, [])):
            for side in sides:
                with busy_processes(cores):
                    rate = side.measure(cell, f"{turn} {name}").decode
                rates.setdefault((side.name, name), []).append(rate)
                print(f"{cell}, {name}, {side.name}: {rate:.1f} tokens/s", flush=True)
    return rates


def verdicts_of(cell: Cell, rates: Rates) -> Iterator[Verdict]:
    """Yield the verdicts on a cell's rates."""
    median = {key: statistics.median(found) for key, found in rates.items()}
    for name in (BESIDE, AFTER):
        yield judge("busy_process", name, median[OURS, name] / median[OURS, QUIET], str(cell))
    for side in sorted({side for side, _ in rates} - {OURS}):
        ratio = median[OURS, BESIDE] / median[side, BESIDE]
        yield judge("busy_process", "times the peer, both beside one", ratio, f"{cell}, {side}")


def loaded_beside_busy_processes(opener: Opener, model: Path, cell: Cell, cores: Sequence[int]) -> float:
    """Return the decode rate of a process that loaded the model beside busy processes, measured after they ended."""
    with ExitStack() as stack:
        with busy_processes(cores):
            side = opener.quire(model, FORMAT)
        stack.callback(side.close)
        return side.measure(cell, "loaded beside busy processes").decode


def add_options(parser: Parser) -> None:
    """Add the options: rounds, shapes and batches."""
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each, default 3")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="only this shape")
    parser.add_argument("--batch", type=int, choices=BATCHES, action="append", help="only this many sequences")


def run(args: argparse.Namespace) -> int:
    """Measure, print, and judge."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as name, stopped_by_signals():
        opener = Opener(Path(name))
        verdicts = [
            verdict
            for shape in args.shape or SHAPES
            for verdict in measure_shape(opener, shape, args.batch or BATCHES, args.rounds)
        ]
    return conclude(verdicts)


def measure_shape(opener: Opener, shape: str, batches: Sequence[int], rounds: int) -> Iterator[Verdict]:
    """Measure a model alone and beside busy processes; each verdict is printed."""
    model, cores = checkpoint(opener.folder, shape), sorted(os.sched_getaffinity(0))
    cells, rates = [Cell(shape, FORMAT, batch) for batch in batches], dict[Cell, Rates]()
    with ExitStack() as stack:
        sides = [opener.quire(model, FORMAT)]
        stack.callback(sides[0].close)
        if "vLLM" not in missing_peers():
            sides.append(opener.vllm(model))
            stack.callback(sides[1].close)
        for cell in reversed(cells):
            rates[cell] = measure(sides, cell, rounds, cores[0])
            for verdict in verdicts_of(cell, rates[cell]):
                print(verdict, flush=True)
                yield verdict
    loaded = [loaded_beside_busy_processes(opener, model, cells[0], cores) for _ in range(rounds)]
    share = statistics.median(loaded) / statistics.median(rates[cells[0]][OURS, QUIET])
    verdict = judge("busy_process", "loaded beside busy processes", share, str(cells[0]))
    print(verdict, flush=True)
    yield verdict
