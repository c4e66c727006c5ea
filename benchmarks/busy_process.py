"""What another program costs that takes one core all the time: `python -m benchmarks busy_process [--rounds N]`.

Decodes 1, 8 and 32 sequences of the s135 and q05 shapes (random weights, 128 tokens in, 64 out) alone, then beside a
process that never sleeps on one of the cores, then alone again; in turn, several rounds. Then the model is loaded
beside one such process per core, and measured when they are gone. vLLM takes part where `make peers` has set it up.

Exits 1 where Quire keeps less than the limit, is slower afterwards than before, or is behind vLLM in the same company.
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
"""Tokens per second of every round, by side and company."""


@contextmanager
def company(cores: Sequence[int]) -> Iterator[None]:
    """Have a process that never sleeps on each of these cores."""
    with ExitStack() as stack:
        for core in cores:
            # A session of its own, as other people's programs have: the system shares out cores among sessions.
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
                with company(cores):
                    rate = side.measure(cell, f"{turn} {name}").decode
                rates.setdefault((side.name, name), []).append(rate)
                print(f"{cell}, {name}, {side.name}: {rate:.1f} tokens/s", flush=True)
    return rates


def verdicts_of(cell: Cell, rates: Rates) -> Iterator[Verdict]:
    """Yield what is required of a cell's rates."""
    median = {key: statistics.median(found) for key, found in rates.items()}
    for name in (BESIDE, AFTER):
        yield judge("busy_process", name, median[OURS, name] / median[OURS, QUIET], str(cell))
    for side in sorted({side for side, _ in rates} - {OURS}):
        ratio = median[OURS, BESIDE] / median[side, BESIDE]
        yield judge("busy_process", "times the peer, both beside one", ratio, f"{cell}, {side}")


def loaded_in_company(opener: Opener, model: Path, cell: Cell, cores: Sequence[int]) -> float:
    """Return the decode rate of a process that loaded the model in company, which has gone."""
    with ExitStack() as stack:
        with company(cores):
            side = opener.quire(model, FORMAT)
        stack.callback(side.close)
        return side.measure(cell, "loaded in company").decode


def add_options(parser: Parser) -> None:
    """Add how often, and what is measured."""
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
    """Measure a model in all its company; each verdict is printed."""
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
    loaded = [loaded_in_company(opener, model, cells[0], cores) for _ in range(rounds)]
    share = statistics.median(loaded) / statistics.median(rates[cells[0]][OURS, QUIET])
    verdict = judge("busy_process", "loaded in company", share, str(cells[0]))
    print(verdict, flush=True)
    yield verdict
