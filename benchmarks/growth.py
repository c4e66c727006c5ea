"""Whether a server grows with the requests that it has answered.

`python -m benchmarks growth [--requests N]`. The server of the benchmark `streams` over its scripted engine answers
300,000 short streams, with each a connection of its own. Every 5,000 requests its freed memory is given back, and what
it holds is read. After a warm-up the memory must follow a line that does not rise, and at the end there may be no more
tasks, descriptors, threads and objects than then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.commands.options import Parser
from app.contract.errors import ConfigurationError
from app.runtime.process_limits import raise_file_limit
from benchmarks.api_client import ApiClient
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.piece_reader import PieceReader
from benchmarks.server_process import local_target
from benchmarks.side import Program, with_checkout
from benchmarks.streams.cells import QUIRE
from benchmarks.streams.pinning import available_cores
from benchmarks.streams.script import seed_of

BATCH, NUM_CLIENTS, NUM_SEEDS, MAX_TOKENS = 5000, 32, 1000, 4
WARM_UP_SHARE = 0.2
ANSWER_S, STALL_S = 120.0, 600.0
COUNTS = ("tasks", "descriptors", "threads", "objects")


def add_options(parser: Parser) -> None:
    """Add how many requests."""
    parser.add_argument("--requests", type=int, default=300_000, help="default 300,000")


def run(args: argparse.Namespace) -> int:
    """Measure, print and judge."""
    if args.requests < 10 * BATCH:
        raise ConfigurationError(f"--requests must be at least {10 * BATCH:,}")
    raise_file_limit()
    settings = {"serve": QUIRE, "cores": [*available_cores()], "stall_timeout_s": STALL_S}
    command = [sys.executable, "-m", "benchmarks.streams.server_process", json.dumps(settings)]
    with (
        tempfile.TemporaryDirectory(prefix="quire-growth-") as folder,
        Program(command, Path(folder) / "log", with_checkout(), "server", ANSWER_S) as server,
    ):
        port = server.ask("ready")["port"]
        server.ask("pace", rate=None)
        held = []
        for number in range(args.requests // BATCH):
            asyncio.run(serve(port))
            held.append({**server.ask("trim"), **server.ask("gauges")})
            print(f"{BATCH * (number + 1):,} requests: {held[-1]['rss_kib'] / 1024:.1f} MiB", flush=True)
    verdicts = judged(held[round(WARM_UP_SHARE * len(held)) :])
    print(*verdicts, sep="\n")
    return conclude(verdicts)


async def serve(port: int) -> None:
    """Let clients read BATCH streams, one after the other each."""
    seeds = iter(range(BATCH))

    async def read_all() -> None:
        client = ApiClient(local_target(port), ANSWER_S)
        for number in seeds:
            body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": MAX_TOKENS, "stream": True}
            payload = json.dumps({**body, "seed": seed_of(number % NUM_SEEDS)}).encode()
            reader = PieceReader()
            await client.exchange(local_target(port).post("/v1/chat/completions", payload), reader)
            if b"data: [DONE]" not in reader.tail:
                raise RuntimeError(f"a stream has failed: {reader.status} {reader.tail[-300:]!r}")

    await asyncio.gather(*(read_all() for _ in range(NUM_CLIENTS)))


def judged(held: Sequence[dict[str, Any]]) -> list[Verdict]:
    """Hold what the server held after each batch against the limits."""
    slope, error = line([each["rss_kib"] for each in held])
    per_100_000 = 100_000 / BATCH / 1024
    print(f"memory: {slope * per_100_000:+.3f} MiB for 100,000 requests, +- {1.96 * error * per_100_000:.3f}")
    return [
        judge("growth", "memory, upper end of 95 %", (slope + 1.96 * error) * per_100_000),
        *(judge("growth", f"more {name}", held[-1][name] - held[0][name]) for name in COUNTS),
    ]


def line(values: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the line of least squares for a step, and its standard error."""
    found = statistics.linear_regression(range(len(values)), values)
    rest = [value - found.slope * index - found.intercept for index, value in enumerate(values)]
    middle = (len(values) - 1) / 2
    spread = sum((index - middle) ** 2 for index in range(len(values)))
    return found.slope, math.sqrt(sum(each**2 for each in rest) / (len(values) - 2) / spread)
