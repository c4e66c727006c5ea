"""What the journal costs: its thread, a token, a commit, the first token of an answer, and the restart.

`python -m benchmarks journal [--seconds N] [--requests N] [--out FILE]`. Streams are told tokens as by the engine, 32
streams 20 times and 256 streams 100 times a second, and recorded in a folder for temporary files; `quire serve` answers
32 durable streams of the s135 shape, and single requests with a journal and without one in turn; and a file of 1,000
answers with 512 tokens each is read.

Processor times hold on a busy machine; the times of commits and first tokens need a quiet one. Garbage is collected as
in the server: rarely, and without what was there before the streams.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from app.commands.measuring.machine import describe_run
from app.commands.options import Parser
from app.loadgen.figures import percentile
from app.runtime.gc_tuning import freeze_after_startup
from benchmarks.figures import write_json
from benchmarks.journal.restoring import NUM_STREAMS, NUM_TOKENS, restore_s, write
from benchmarks.journal.serving import first_tokens_s, share_of_process
from benchmarks.journal.telling import Told, tell
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.stopping import stopped_by_signals

LOADS = {"32 x 20": (32, 20.0), "256 x 100": (256, 100.0)}
NUM_RESTORES = 3


def add_options(parser: Parser) -> None:
    """Add for how long, how often, and where the figures go."""
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load, default 20")
    parser.add_argument("--requests", type=int, default=300, help="first tokens of each side, default 300")
    parser.add_argument("--out", type=Path, help="write the figures as JSON, such as to journal.json")


def run(args: argparse.Namespace) -> int:
    """Measure, print and judge."""
    verdicts: list[Verdict] = []
    freeze_after_startup()
    with tempfile.TemporaryDirectory(prefix="quire-journal-") as name, stopped_by_signals():
        for verdict in measure(args, Path(name)):
            print(verdict, flush=True)
            verdicts.append(verdict)
    if args.out is not None:
        figures = {": ".join(filter(None, (each.what, each.limit.name))): each.figure for each in verdicts}
        write_json(args.out, {"benchmark": "journal", **describe_run(("torch",)), "figures": figures})
    return conclude(verdicts)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Verdict]:
    """Yield each figure, held against its limit."""
    for name, (num_streams, rate) in LOADS.items():
        told = asyncio.run(tell(folder / name.replace(" ", ""), num_streams, rate, args.seconds))
        print(f"{name}: {_shown(told)}", flush=True)
        yield judge("journal", f"thread, {name}", 1e6 * told.thread_s / told.num_tokens)
        yield judge("journal", f"loop, {name}", 1e6 * told.loop_s / told.num_tokens)
        yield judge("journal", "commit, p99", 1e3 * told.commit_s(0.99), name)
        yield judge("journal", "log beside the file", told.wal_bytes / 2**20, name)
    write(folder / "restore")
    yield judge("journal", "restore", min(restore_s(folder / "restore") for _ in range(NUM_RESTORES)), _restored())
    durable, in_memory = first_tokens_s(folder, args.requests)
    medians = ", ".join(f"{1e3 * percentile(found, 0.5):.2f}" for found in (durable, in_memory))
    print(f"first token, median with and without a journal: {medians} ms", flush=True)
    yield judge("journal", "first token, p99 later", 1e3 * (percentile(durable, 0.99) - percentile(in_memory, 0.99)))
    share = share_of_process(folder)
    print(f"{share.num_tokens:,} durable tokens of s135: {share.process_s:.1f} s of processor time", flush=True)
    yield judge("journal", "share of the process", share.journal_s / share.process_s)


def _shown(told: Told) -> str:
    rate = told.num_tokens / told.seconds
    return (
        f"{rate:,.0f} tokens/s, {len(told.commits_s) / told.seconds:,.0f} commits/s of "
        f"{1e3 * told.commit_s(0.5):.2f} ms (median), {1e3 * told.commit_s(1.0):.1f} ms (longest), "
        f"{told.file_bytes / 2**20:.1f} MiB"
    )


def _restored() -> str:
    return f"{NUM_STREAMS:,} answers of {NUM_TOKENS} tokens"
