"""Memory of answers that are kept for readers that come back.

`python -m benchmarks kept_memory [--output results/kept_memory.json]` serves 2,000 streams of a scripted engine, 500
for each of four accounts, lets their clients go, and reads by how much the server's resident memory has grown. It does
so with short answers, with long ones, and with short ones that are not kept: the difference of the first two is what
tokens take, that of the first and the last what streams take. It exits 1 when a limit is missed. It takes no times.
Linux only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from app.commands.measuring.machine import describe_run
from app.commands.options import Parser
from app.runtime.process_limits import raise_file_limit
from app.streaming.kept.live_stream import PROMPT_TOKEN_BYTES
from benchmarks.figures import write_json
from benchmarks.limits import conclude, judge
from benchmarks.streams.cells import QUIRE, Part
from benchmarks.streams.client_group import RESUMABLE, SSE
from benchmarks.streams.pinning import available_cores, share_cores
from benchmarks.streams.processes import Processes
from benchmarks.streams.script import TOKEN_CHARS

SOURCES = tuple(f"127.0.3.{number}" for number in range(1, 5))
PER_SOURCE = 500
NUM_SHORT, NUM_LONG = 50, 500  # tokens of an answer
NUM_PROMPT = 16  # tokens, about: what the engine of the streams is asked
POLL_S, REST_S, STALL_S = 0.05, 1.0, 600.0


class Taken(NamedTuple):
    """By how much the server has grown, and the tokens of all answers."""

    num_bytes: int
    num_tokens: int


def measure(kind: str, num_tokens: int, folder: Path) -> Taken:
    """Serve answers of at least `num_tokens` tokens, and read the memory when their clients have gone.

    Raises:
        SideFailed: a process died, or an answer was rejected or is not kept.
    """
    with Processes(QUIRE, share_cores(available_cores()), folder, stall_timeout_s=STALL_S) as processes:
        _serve(processes, SSE, NUM_SHORT)  # so that what connections leave behind is there already
        before, num_before = _resident(processes), sum(processes.tokens().values())
        _serve(processes, kind, num_tokens)
        return Taken(_resident(processes) - before, sum(processes.tokens().values()) - num_before)


def _serve(processes: Processes, kind: str, num_tokens: int) -> None:
    for source in SOURCES:
        processes.open(f"{kind} {source}", Part(kind, PER_SOURCE), source=source)
    wanted = sum(processes.tokens().values()) + processes.num_open * num_tokens
    processes.pace(None)
    while sum(processes.tokens().values()) < wanted:
        time.sleep(POLL_S)
    processes.finish()


def _resident(processes: Processes) -> int:
    time.sleep(REST_S)  # until the server has noticed that its clients have gone
    processes.server.ask("trim")
    return 1024 * int(processes.gauges()["rss_kib"])


def add_options(parser: Parser) -> None:
    """Add where the figures go."""
    parser.add_argument("--output", type=Path, help="write the figures as JSON, such as to kept_memory.json")


def run(args: argparse.Namespace) -> int:
    """Measure, print and judge."""
    raise_file_limit()
    num_streams = len(SOURCES) * PER_SOURCE
    with tempfile.TemporaryDirectory(prefix="quire-kept-") as folder:
        plain = measure(SSE, NUM_SHORT, Path(folder))
        short = measure(RESUMABLE, NUM_SHORT, Path(folder))
        long = measure(RESUMABLE, NUM_LONG, Path(folder))
    token = (long.num_bytes - short.num_bytes) / (long.num_tokens - short.num_tokens)
    stream = (short.num_bytes - plain.num_bytes - token * short.num_tokens) / num_streams
    verdicts = [
        judge("kept_memory", "a token, beside its text", token - TOKEN_CHARS),
        judge("kept_memory", "a stream, beside its tokens and its prompt", stream - NUM_PROMPT * PROMPT_TOKEN_BYTES),
    ]
    rows = {"not kept": plain, "short": short, "long": long}
    for name, taken in rows.items():
        print(f"{name}: {taken.num_bytes / 2**20:.1f} MiB for {num_streams} answers of {taken.num_tokens:,} tokens")
    print(*verdicts, sep="\n")
    if args.output is not None:
        taken = {name: each._asdict() for name, each in rows.items()}
        figures = {verdict.limit.name: round(verdict.figure, 1) for verdict in verdicts}
        about = {"benchmark": "kept_memory", **describe_run(()), "num_streams": num_streams}
        write_json(args.output, {**about, "taken": taken, "bytes": figures})
    return conclude(verdicts)
