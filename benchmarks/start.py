"""Seconds from process start to the page and to the first token: `python -m benchmarks start [--repeat N]`.

Measured are `guide` and, in turn with it, SmolLM2's GGUF file, if `make real-model` has fetched it. Writes
`results/start.json`, and exits 1 when the median time to the first token is over the limit, or that of the file is too
much later than that of `guide`. The first run of each warms the caches and does not count. While the model loads,
`/readyz` is requested all the time: the slowest response is the longest wait of a page. The effect of other programs
shows in the number of busy cores before each run, and in the CPU time of the server's process.
"""

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from app.checkpoint.hub import smollm2
from app.commands.measuring.machine import describe_run
from app.commands.options import Parser
from benchmarks.busy_cores import busy_cores
from benchmarks.figures import RESULTS, write_json
from benchmarks.limits import Verdict, conclude, judge, limits
from benchmarks.server_process import listening

FIRST_TOKEN, FILE_LATER = "median to the first token", "135M GGUF file, median later than guide"
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


async def measure(*arguments: str) -> Start:
    """Start a server with these arguments, ask it one question and end it."""
    busy = busy_cores(LOOK_S)
    # With compiled Python files, like an installed one.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    with listening("--timings", *arguments, environ=environ) as server:
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


def figures(runs: list[Start], of_file: list[Start]) -> dict[str, object]:
    """Return the figures to write: medians, all runs, and where the time of the run in the middle went."""
    middle = sorted(runs, key=lambda run: run.first_token)[len(runs) // 2]
    found: dict[str, object] = {
        "benchmark": "start",
        **describe_run(("torch",)),
        "limit_s": limits("start")[FIRST_TOKEN].value,
        **_stages(runs),
        "timings": middle.timings,
    }
    return found | {"file": {"name": smollm2.FILE, **_stages(of_file)}} if of_file else found


def verdicts(runs: list[Start], of_file: list[Start]) -> list[Verdict]:
    """Hold the medians against their limits."""
    own = statistics.median(run.first_token for run in runs)
    found = [judge("start", FIRST_TOKEN, own)]
    if of_file:
        found.append(judge("start", FILE_LATER, statistics.median(run.first_token for run in of_file) - own))
    return found


def _stages(runs: list[Start]) -> dict[str, object]:
    return {
        "medians": {stage: statistics.median(getattr(run, stage) for run in runs) for stage in STAGES},
        "runs": {stage: [getattr(run, stage) for run in runs] for stage in STAGES},
    }


def add_options(parser: Parser) -> None:
    """Add how often."""
    parser.add_argument("--repeat", type=int, default=5, help="starts, default 5")


def run(args: argparse.Namespace) -> int:
    """Measure, print one line per run, write the figures, and judge the medians."""
    models: dict[str, list[str]] = {"guide": []}
    if smollm2.is_there():
        models[smollm2.FILE] = [str(smollm2.local_file())]
    else:
        print(f"{smollm2.FILE} is left out: `make real-model` fetches it")
    found: dict[str, list[Start]] = {name: [] for name in models}
    for turn in range(1 + args.repeat):
        for name, arguments in models.items():
            start = asyncio.run(measure(*arguments))
            if turn:
                found[name].append(start)
                print(f"{name}: {describe(start)}", flush=True)
    results = (found["guide"], found.get(smollm2.FILE, []))
    write_json(RESULTS / "start.json", figures(*results))
    for verdict in verdicts(*results):
        print(verdict)
    return conclude(verdicts(*results))
