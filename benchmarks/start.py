"""Seconds from process start to the page and to the first token of `guide`: `python -m benchmarks start [--repeat N]`.

Writes `results/start.json`, and exits 1 when the median time to the first token is over the limit. The first run warms
the caches and does not count. While the model loads, `/readyz` is requested all the time: the slowest response is the
longest wait of a page. The effect of other programs shows in the number of busy cores before each run, and in the CPU
time of the server's process.
"""

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from app.commands.machine import describe_run
from app.commands.options import Parser
from benchmarks.busy_cores import busy_cores
from benchmarks.figures import RESULTS, write_json
from benchmarks.limits import conclude, judge, limits
from benchmarks.server_process import listening

LOOK_S = 0.5
QUESTION = {"messages": [{"role": "user", "content": "What is Quire?"}], "stream": True, "temperature": 0}


class Start(NamedTuple):
    """One start: when the stages were reached, in seconds since the process was started; and what it took."""

    page: float
    ready: float
    first_token: float
    slowest_answer: float  # while the model loaded
    cpu: float  # of the process until the first token, on all cores
    busy_cores: float  # used by other programs before
    timings: tuple[str, ...]  # the server's own timings


async def measure() -> Start:
    """Start a server, ask it one question and end it."""
    busy = busy_cores(LOOK_S)
    # With compiled Python files, like an installed one.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    with listening("--timings", environ=environ) as server:
        assert (await server.client().get("/")).status == 200
        page = time.perf_counter() - began
        slowest_answer = await server.wait_until_ready()
        ready = time.perf_counter() - began
        await server.wait_for_token("/v1/chat/completions", QUESTION)
        first_token = time.perf_counter() - began
        cpu = cpu_time(server.pid)
        return Start(page, ready, first_token, slowest_answer, cpu, busy, tuple(server.end()))


def cpu_time(pid: int) -> float:
    """Return the CPU seconds that a process has used; nan if the system does not report them."""
    try:
        # The name in field 2 may hold spaces, so count behind it: user and system time are fields 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


STAGES = ("page", "ready", "first_token", "slowest_answer", "cpu", "busy_cores")


def describe(run: Start) -> str:
    """Return one run in words."""
    return (
        f"page {run.page:.2f} s  ready {run.ready:.2f} s  first token {run.first_token:.2f} s  slowest answer "
        f"{1e3 * run.slowest_answer:.0f} ms  CPU {run.cpu:.2f} s  others on {run.busy_cores:.1f} cores"
    )


def figures(runs: list[Start]) -> dict[str, object]:
    """Return what is written: medians, all runs, and where the time of the run in the middle went."""
    middle = sorted(runs, key=lambda run: run.first_token)[len(runs) // 2]
    return {
        "benchmark": "start",
        **describe_run(("torch",)),
        "limit_s": limits("start")["median to the first token"].value,
        "medians": {stage: statistics.median(getattr(run, stage) for run in runs) for stage in STAGES},
        "runs": {stage: [getattr(run, stage) for run in runs] for stage in STAGES},
        "timings": middle.timings,
    }


def add_options(parser: Parser) -> None:
    """Add how often."""
    parser.add_argument("--repeat", type=int, default=5, help="starts, default 5")


def run(args: argparse.Namespace) -> int:
    """Measure, print one line per run, write the figures, and judge the median."""
    asyncio.run(measure())
    runs = []
    for _ in range(args.repeat):
        runs.append(asyncio.run(measure()))
        print(describe(runs[-1]), flush=True)
    write_json(RESULTS / "start.json", figures(runs))
    verdict = judge("start", "median to the first token", statistics.median(run.first_token for run in runs))
    print(verdict)
    return conclude([verdict])
