"""What the live view costs: pictures the engine thread, and watchers the engine thread and the event loop of a server.

`python -m benchmarks live [--repeat N] [--only NAMES]` writes `results/live.json`, of `served`
`results/live_served.json`, and exits 1 when a figure misses its limit. Linux.

Somebody watches and nobody does, in turns. What is compared is the processor time of threads for a token, which other
programs affect least; the time between tokens is reported.

    guide    an engine in this process decodes 32 sequences of the embedded model
    s135     32 sequences of that shape, random weights
    pool     a pool of 100,000 KV blocks, 256 sequences with 380 each, and a model that keeps the thread busy for 20 ms
    served   `quire serve guide` sends 32 streams beside a watcher, 16, one that reads nothing, and Chromium that draws
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.commands.measuring.machine import machine
from app.commands.options import Parser
from app.observe.terminal import own_terminal
from app.runtime.gc_tuning import freeze_after_startup
from benchmarks.figures import RESULTS, write_json
from benchmarks.limits import conclude
from benchmarks.live import engine_cells, served, unit_costs
from benchmarks.live.engine_cells import CELLS, Found
from benchmarks.live.report import (
    engine_json,
    engine_table,
    engine_verdicts,
    faults,
    pool_lines,
    pool_verdicts,
    served_json,
    served_table,
    served_verdicts,
)
from benchmarks.live.served import CHROMIUM, NUM_WATCHERS, Served
from benchmarks.live.unit_costs import UnitCosts
from benchmarks.options import chosen
from benchmarks.stopping import stopped_by_signals

SERVED = "served"
NO_COSTS = UnitCosts(0.0, {}, {})


def add_options(parser: Parser) -> None:
    """Add how often, and what."""
    names = ", ".join([*CELLS, SERVED])
    parser.add_argument("--repeat", type=int, default=5, help="repeats of each part, default 5")
    parser.add_argument("--only", metavar="NAMES", help=f"parts, comma-separated, of {names}; default all")


def run(args: argparse.Namespace) -> int:
    """Measure, write the figures, and judge the medians."""
    names = chosen(args.only, [*CELLS, SERVED], "only")
    cells = measure_cells([name for name in names if name in CELLS], args.repeat)
    beside, costs = measure_served(args.repeat) if SERVED in names else ({}, NO_COSTS)
    judged = engine_verdicts(cells)
    if cells:
        print(*engine_table(cells, own_terminal()), sep="\n")
        figures = {name: engine_json(found, judged[name]) for name, found in cells.items()}
        _write("live", args.repeat, {"cells": figures})
    if beside:
        print(*served_table(beside, costs, own_terminal()), *pool_lines(costs), sep="\n")
        figures = {name: served_json(name, found, costs) for name, found in beside.items()}
        _write("live_served", args.repeat, {"picture": costs._asdict(), "beside": figures})
    verdicts = [*judged.values(), *served_verdicts(beside), *pool_verdicts(costs)]
    print(*verdicts, sep="\n")
    return conclude(verdicts, faults(beside))


def measure_cells(names: Sequence[str], repeats: int) -> dict[str, Found]:
    """Measure engines in this process, one after the other."""
    found: dict[str, Found] = {}
    for name in names:
        engine = CELLS[name].open()
        freeze_after_startup()
        found[name] = engine_cells.measure(engine, CELLS[name], repeats)
        del engine
    return found


def measure_served(repeats: int) -> tuple[dict[str, Served], UnitCosts]:
    """Measure what pictures take with nothing beside, and a server beside its watchers."""
    names = served.available([*NUM_WATCHERS, CHROMIUM])
    if CHROMIUM not in names:
        print(f"{CHROMIUM} is left out: `make dev` brings one, and playwright, which drives it.")
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder, stopped_by_signals():
        costs = unit_costs.measure(Path(folder))
        return served.measure(names, repeats, Path(folder)), costs


def _write(name: str, repeats: int, figures: dict[str, object]) -> None:
    write_json(RESULTS / f"{name}.json", {"benchmark": "live", "machine": machine(), "repeats": repeats} | figures)
