"""A server that gets five times as many requests as it can answer.

`python -m benchmarks overload [--seconds S]`. `guide` with 8 seats and a queue of 16. First as many clients as it takes
ask one request after the other; then requests come at random times, five times as many as were answered before. It must
answer as many tokens as before, and reject the others at once.

Clients are on another machine elsewhere, and here on a core of their own: on two cores that both share, four threads
wait for each other (docs/decisions.md has both).
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from collections.abc import Sequence

from app.commands.options import Parser
from app.loadgen.answer import Answer
from app.loadgen.figures import percentile
from app.loadgen.load import Load
from app.loadgen.load_client import Client
from app.loadgen.load_run import Run
from app.runtime.process_limits import raise_file_limit
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.server_process import ServerProcess, serving

NUM_SEATS, NUM_QUEUED, TIMES = 8, 16, 5
REJECTED = (429, 503)
TIMEOUT_S = 60.0


def add_options(parser: Parser) -> None:
    """Add for how long."""
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load, default 30")


def run(args: argparse.Namespace) -> int:
    """Measure, print and judge."""
    raise_file_limit()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:-1] or cores)  # the server's, which inherits them
    with serving("guide", "--max-num-seqs", str(NUM_SEATS), "--max-queue", str(NUM_QUEUED)) as server:
        os.sched_setaffinity(0, cores[-1:])
        verdicts = asyncio.run(measure(server, args.seconds))
    print(*verdicts, sep="\n")
    return conclude(verdicts)


async def measure(server: ServerProcess, seconds: float) -> list[Verdict]:
    """Measure both loads."""
    load = Load(model="guide", input_len=64, output_len=64, ignore_eos=True, duration_s=seconds)
    able = Run(Client(server.target, TIMEOUT_S), NUM_SEATS + NUM_QUEUED, seconds)
    await able.send(load.requests(server.target, math.inf, 0))
    rate = len(_with_status(able, "completed")) / (able.ended - able.began)
    over = Run(Client(server.target, TIMEOUT_S))
    await over.send(load.requests(server.target, TIMES * rate, 1))
    rejected = [answer for answer in over.answers if answer.http_status in REJECTED]
    others = [answer for answer in over.answers if answer.status != "completed" and answer.http_status not in REJECTED]
    print(
        f"{rate:.1f} requests/s answered; at {TIMES * rate:.0f}/s {len(_with_status(over, 'completed')):,} answered, "
        f"{len(rejected):,} rejected"
    )
    return [
        judge("overload", "tokens answered, of those without", _tokens_per_s(over) / _tokens_per_s(able)),
        judge("overload", "p99 of a rejection", 1e3 * percentile(sorted(answer.e2e for answer in rejected), 0.99)),
        judge("overload", "neither answered nor rejected", len(others)),
    ]


def _with_status(run: Run, status: str) -> Sequence[Answer]:
    return [answer for answer in run.answers if answer.status == status]


def _tokens_per_s(run: Run) -> float:
    num_tokens = sum(answer.output_tokens or 0 for answer in _with_status(run, "completed"))
    return num_tokens / (run.ended - run.began)
