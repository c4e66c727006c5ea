"""What the benchmarks of the kernels share: how they begin, and how they time runs that take turns."""

import argparse
import time
from collections.abc import Callable, Sequence

import torch

from app.commands.options import Parser
from app.contract.errors import CannotStart
from app.kernels.cpu.compiling import supported_sets
from app.kernels.cpu.library import NativeLibrary, load_library

MIN_ROUNDS = 3


def begin(args: argparse.Namespace) -> NativeLibrary:
    """Use as many threads as the options say, and say which kernels are measured.

    Raises:
        CannotStart: there are none.
    """
    torch.set_num_threads(args.threads)
    library = load_library(args.set)
    if library is None:
        raise CannotStart(f"There are no native kernels for {args.set or 'this machine'} here.")
    print(f"{library.instruction_set}, {args.threads} threads; best (median)")
    return library


def add_threads(parser: Parser) -> None:
    """Add how many threads, and which instructions they use."""
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default all")
    parser.add_argument("--set", choices=supported_sets(), help="instructions of the CPU, default the best")


def alternate(runs: Sequence[Callable[[], object]], is_alone: bool, limit_s: float) -> list[list[float]]:
    """Let `runs` take turns for about `limit_s`, once more before that; return the seconds that each took.

    With `is_alone`, one thread, only its own processor time counts, which other work disturbs less.
    """
    clock = time.thread_time if is_alone else time.perf_counter
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    end = time.perf_counter() + limit_s
    while time.perf_counter() < end or len(times[0]) < MIN_ROUNDS:
        for run, taken in zip(runs, times, strict=True):
            start = clock()
            run()
            taken.append(clock() - start)
    return times
