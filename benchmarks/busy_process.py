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

from app.commands.stopping import stopped_by_signals
from benchmarks.cpu.cells import OURS, Cell
from benchmarks.cpu.command import checkpoint
from benchmarks.cpu.sides import GeneratingSide, Opener, missing_peers

SHAPES, BATCHES, FORMAT = ("s135", "q05"), (1, 8, 32), "bf16"
KEPT = 0.45  # of the quiet speed, with one of two cores taken
AFTERWARDS = 0.9  # of the quiet speed at least, when the company has gone: what rounds differ by
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


def judge(cell: Cell, rates: Rates) -> Iterator[str]:
    """Yield a line for each thing that is not as it must be."""
    median = {key: statistics.median(found) for key, found in rates.items()}
    quiet = median[OURS, QUIET]
    for name, least in ((BESIDE, KEPT), (AFTER, AFTERWARDS)):
        share = median[OURS, name] / quiet
        print(f"{cell}: {name} {share:.0%} of {quiet:.1f} tokens/s, {least:.0%} required", flush=True)
        if share < least:
            yield f"{cell}: {name} only {share:.0%} of the quiet speed"
    for side in {side for side, _ in rates} - {OURS}:
        ratio = median[OURS, BESIDE] / median[side, BESIDE]
        print(f"{cell}: {ratio:.2f} times {side}, both {BESIDE}", flush=True)
        if ratio < 1:
            yield f"{cell}: {ratio:.2f} times {side}, {BESIDE}"


def loaded_in_company(opener: Opener, model: Path, cell: Cell, cores: Sequence[int]) -> float:
    """Return the decode rate of a process that loaded the model in company, which has gone."""
    with ExitStack() as stack:
        with company(cores):
            side = opener.quire(model, FORMAT)
        stack.callback(side.close)
        return side.measure(cell, "loaded in company").decode


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="only this shape")
    parser.add_argument("--batch", type=int, choices=BATCHES, action="append", help="only so many sequences")
    args = parser.parse_args()
    missing, missed = missing_peers(), []
    if "vLLM" in missing:
        print(f"vLLM is left out: {missing['vLLM']}", flush=True)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as name, stopped_by_signals():
        opener = Opener(Path(name))
        for shape in args.shape or SHAPES:
            model = checkpoint(opener.folder, shape)
            cells = [Cell(shape, FORMAT, batch) for batch in args.batch or BATCHES]
            with ExitStack() as stack:
                sides = [opener.quire(model, FORMAT)]
                stack.callback(sides[0].close)
                if "vLLM" not in missing:
                    sides.append(opener.vllm(model))
                    stack.callback(sides[1].close)
                quiet = 0.0
                for cell in reversed(cells):
                    rates = measure(sides, cell, args.rounds, cores[0])
                    missed += judge(cell, rates)
                    quiet = statistics.median(rates[OURS, QUIET])
            loaded = [loaded_in_company(opener, model, cells[0], cores) for _ in range(args.rounds)]
            share = statistics.median(loaded) / quiet
            print(f"{cells[0]}: loaded in company {share:.0%} of {quiet:.1f} tokens/s, {AFTERWARDS:.0%} required")
            if share < AFTERWARDS:
                missed.append(f"{cells[0]}: loaded in company only {share:.0%} of the quiet speed")
    for line in missed:
        print(f"missed: {line}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
