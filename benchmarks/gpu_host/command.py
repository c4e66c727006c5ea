"""The host beside a GPU, without one: a scripted device takes the estimated time of each step, everything else is real.

`python -m benchmarks gpu_host [--rounds N] [--out FOLDER]`. Each round runs a load through `LLM`, then through the
server with 256 streams of server-sent events, read by a process of its own. Exits 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from app.commands.measuring.machine import describe_run
from app.commands.options import Parser
from app.contract.errors import CannotStart
from app.observe.terminal import own_terminal
from app.runtime.cores import num_cores
from app.runtime.process_limits import raise_file_limit
from benchmarks.busy_cores import busy_cores
from benchmarks.figures import write_json
from benchmarks.gpu_host.cells import CELLS
from benchmarks.gpu_host.report import judged, progress_line, report, to_json
from benchmarks.gpu_host.rounds import Round, measure
from benchmarks.limits import conclude
from benchmarks.options import chosen, make_folder

MAX_BUSY_CORES = 0.2
PACKAGES = ("torch", "triton", "uvicorn", "uvloop", "httptools", "orjson")


def add_options(parser: Parser) -> None:
    """Add what, how often, and where the figures go."""
    parser.add_argument("--only", metavar="CELLS", help=f"Cells, comma-separated, of {', '.join(CELLS)}; default all.")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="Rounds of each cell, default 5.")
    parser.add_argument(
        "--itl-target", metavar="SECONDS", help="The server's, default its own; 0 takes the steps that `LLM` takes."
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="Folder for gpu_host.json, default none is written.")


def run(args: argparse.Namespace) -> int:
    """Measure, print one line per round and the medians, and judge."""
    keys = chosen(args.only, list(CELLS), "only")
    if not sys.platform.startswith("linux"):
        raise CannotStart("`python -m benchmarks gpu_host` reads what Linux tells of threads; run it on Linux.")
    if args.out is not None:
        make_folder(args.out, "out")
    raise_file_limit()
    busy = busy_cores(0.5)
    if busy > MAX_BUSY_CORES:
        print(f"Other programs use {busy:.1f} cores: the figures will tell little.", file=sys.stderr, flush=True)
    about = describe_run(PACKAGES)
    about["machine"] |= {"busy_cores_before": round(busy, 2)}
    server_options = [] if args.itl_target is None else ["--itl-target", args.itl_target]
    found: dict[str, list[Round]] = {CELLS[key].name: [] for key in keys}
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        for key in keys:
            rounds = found[CELLS[key].name]
            for each in measure(CELLS[key], args.rounds, Path(folder), server_options):
                rounds.append(each)
                print(f"{len(rounds)}/{args.rounds} {CELLS[key].name}: {progress_line(each)}", flush=True)
                if args.out is not None:
                    write_json(args.out / "gpu_host.json", {**about, "cells": to_json(found)})
    print("\n".join(report(found, own_terminal())))
    verdicts = [verdict for name, rounds in found.items() for verdict in judged(name, rounds, num_cores())]
    print("\n".join(map(str, verdicts)), flush=True)
    return conclude(verdicts)
