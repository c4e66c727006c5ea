"""The host beside a GPU, without one: a scripted device takes the estimated time of each step, everything else is real.

`python -m benchmarks gpu_host [--rounds N] [--out FOLDER]`. Each round runs a load through `LLM`, then through the
server with 256 streams of server-sent events, read by a process of its own. Exits 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.commands.machine import describe_run, num_cores
from app.commands.options import Parser
from app.contract.errors import CannotStart
from app.loadgen.table import table
from app.observe.terminal import own_terminal
from app.server.run import raise_file_limit
from benchmarks.busy_cores import busy_cores
from benchmarks.figures import spread, write_json
from benchmarks.gpu_host.cells import CELLS
from benchmarks.gpu_host.rounds import Round, measure
from benchmarks.limits import Verdict, conclude, limits
from benchmarks.options import chosen, make_folder

ENOUGH_CORES = 3  # loop and engine share one, the driver's part of the engine has another, the clients a third
SHARE, HOST = "served / offline", "loop and engine, of the steps' time"
PACKAGES = ("torch", "triton", "uvicorn", "uvloop", "httptools", "orjson")
HEAD = (
    "medians", "offline tok/s", "served", "share %", "step ms", "engine", "loop", "host %", "clients", "loop us/token",
    "tokens/event", "ITL p50 ms", "p99",
)  # fmt: skip


def add_options(parser: Parser) -> None:
    """Add what, how often, and where the figures go."""
    parser.add_argument("--only", metavar="CELLS", help=f"Cells, separated by ;, of {'; '.join(CELLS)}; default all.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each cell, default 5")
    parser.add_argument("--out", type=Path, help="Folder for gpu_host.json, default none is written.")


def run(args: argparse.Namespace) -> int:
    """Measure, print one line per round and the medians, and judge."""
    if not sys.platform.startswith("linux"):
        raise CannotStart("`python -m benchmarks gpu_host` reads what Linux tells of threads; run it on Linux.")
    names = chosen(None if args.only is None else args.only, list(CELLS), "only")
    if args.out is not None:
        make_folder(args.out, "out")
    raise_file_limit()
    about = describe_run(PACKAGES)
    about["machine"]["busy_cores_before"] = round(busy_cores(0.5), 2)
    found: dict[str, list[Round]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        for name, rounds in found.items():
            for each in measure(CELLS[name], args.rounds, Path(folder)):
                rounds.append(each)
                print(f"{name}: {', '.join(f'{key} {value}' for key, value in zip(HEAD[1:], row([each])))}", flush=True)
                if args.out is not None:
                    write_json(args.out / "gpu_host.json", {**about, "cells": to_json(found)})
    print("\n".join(table(own_terminal(), HEAD, [[name, *row(rounds)] for name, rounds in found.items()])))
    verdicts = [verdict for name, rounds in found.items() for verdict in judged(name, rounds, num_cores())]
    print("\n".join(map(str, verdicts)))
    return conclude(verdicts)


def row(rounds: Sequence[Round]) -> list[str]:
    """Return the figures of some rounds in the order of HEAD, times per step in ms."""
    return [
        spread([value(each) for each in rounds])
        for value in (
            lambda each: each.num_tokens / each.offline.seconds,
            lambda each: each.num_tokens / each.served.seconds,
            lambda each: each.share,
            lambda each: 1e3 * each.offline.device_s / each.offline.num_steps,
            lambda each: 1e3 * each.served.threads.engine / each.served.num_steps,
            lambda each: 1e3 * each.served.threads.loop / each.served.num_steps,
            lambda each: each.host_share,
            lambda each: 1e3 * each.served.clients_s / each.served.num_steps,
            lambda each: 1e6 * each.served.threads.loop / each.num_tokens,
            lambda each: each.num_tokens / each.served.parts,
            lambda each: each.served.itl_p50_ms,
            lambda each: each.served.itl_p99_ms,
        )
    ]


def judged(name: str, rounds: Sequence[Round], cores: int) -> list[Verdict]:
    """Hold a cell's medians against its limits.

    With too few cores the clients take time from the server: then the share is excused if the time that loop and engine
    need for a step is below the step's.
    """
    figures = {SHARE: [each.share for each in rounds], HOST: [each.host_share for each in rounds]}
    known = limits("gpu_host")
    found = {
        what: Verdict(known[f"{name}: {what}"], statistics.median(values))
        for what, values in figures.items()
        if f"{name}: {what}" in known
    }
    host = found.get(HOST)
    if SHARE in found and host is not None and host.is_met and cores < ENOUGH_CORES and not found[SHARE].is_met:
        found[SHARE] = replace(found[SHARE], excuse=f"not judged on {cores} cores, of which the clients take one")
    return list(found.values())


def to_json(found: dict[str, list[Round]]) -> dict[str, Any]:
    """Return all rounds as they are written."""
    return {
        name: [
            {
                "tokens": each.num_tokens,
                "share": each.share,
                "host_share": each.host_share,
                "offline": each.offline._asdict(),
                "served": each.served._asdict() | {"threads": each.served.threads._asdict()},
            }
            for each in rounds
        ]
        for name, rounds in found.items()
    }
