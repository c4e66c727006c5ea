"""The time of one client's short request beside another client that sends as many requests as it can.

`python -m benchmarks fairness [--models guide,long] [--attacks starts,sleeping] [--seconds N]`. A server in a process
of its own, and an attacker in another one, at the lowest CPU priority (see `greedy_client.py`): 1,000 starts of long
outputs at once, or 300 streams of quire.v1 that are never read. The two have different addresses (127.0.0.2 attacks),
and in a second round different keys. The short request, 16 tokens of output for a prompt of 32, is sent repeatedly,
each time on a connection of its own: first while the attacker is idle, then beside it.

Exits 1 if a short request is rejected, if the slowest is more than a second slower than the quiet median
(`guide`), or if the median is more than three times it (`long`).
"""

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from app.commands.options import Parser
from app.loadgen.table import number, table
from app.observe.terminal import own_terminal
from benchmarks.api_client import ApiClient
from benchmarks.checkpoints import write_checkpoint
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.options import chosen
from benchmarks.server_process import serving

NUM_PROMPT, NUM_NEW = 32, 16
VOCAB_SIZE = 3000  # of all models
GIVE_UP_S = 10.0  # a short request that takes longer counts as this long
PAUSE_S = 0.02  # between two short requests: their client is no flood
READY = "all sent"
MODELS, ATTACKS = ("guide", "long"), ("starts", "sleeping")
ACCOUNTS: Mapping[str, tuple[str, ...]] = {"addresses": (), "keys": ("--api-key", "attacker", "--api-key", "asker")}


class Run(NamedTuple):
    """Seconds of each short request, and the number of rejected ones; `beside` the attacker or before it."""

    model: str
    attack: str
    accounts: str
    quiet: list[float]
    beside: list[float]
    num_rejected: int

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts on the cost of the attacker."""
        quiet, beside = statistics.median(self.quiet), self.beside or [float("inf")]
        if self.model == "guide":
            found = judge("fairness", "slowest request later than the quiet median", max(beside) - quiet, self.name)
        else:
            ratio = statistics.median(beside) / quiet
            found = judge("fairness", "median request, times the quiet one", ratio, self.name)
        return [found, judge("fairness", "rejected requests", self.num_rejected, self.name)]

    @property
    def name(self) -> str:
        """The name of the measurement."""
        return f"{self.model}, {self.attack}, {self.accounts}"


def measure(model: str, attack: str, accounts: str, seconds: float, folder: Path) -> Run:
    """Measure short requests before and beside an attack."""
    path = [] if model == "guide" else [str(folder), "--load-format", "dummy"]
    with serving(*path, *ACCOUNTS[accounts]) as server:
        client = server.client(GIVE_UP_S, "asker" if accounts == "keys" else None)
        quiet, rejected = asyncio.run(ask_for(seconds, client))
        assert not rejected, "a server without load rejected a request"
        with attacker(server.port, attack, accounts):
            beside, rejected = asyncio.run(ask_for(seconds, client))
    return Run(model, attack, accounts, quiet, beside, rejected)


async def ask_for(seconds: float, client: ApiClient) -> tuple[list[float], int]:
    """Send short requests for `seconds`; return the seconds of each, and the number of rejected ones."""
    taken, num_rejected, rng = [], 0, random.Random(seconds)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        prompt = [rng.randrange(10, VOCAB_SIZE) for _ in range(NUM_PROMPT)]
        began = time.monotonic()
        if await is_answered(client, {"prompt": prompt, "max_tokens": NUM_NEW, "temperature": 0, "ignore_eos": True}):
            taken.append(time.monotonic() - began)
        else:
            num_rejected += 1
        await asyncio.sleep(PAUSE_S)
    return taken, num_rejected


async def is_answered(client: ApiClient, fields: dict[str, Any]) -> bool:
    """Send one short request; False if it is rejected."""
    with suppress(TimeoutError):
        return (await client.post("/v1/completions", fields)).status == 200
    return True


@contextmanager
def attacker(port: int, attack: str, accounts: str) -> Iterator[None]:
    """Run the greedy client, from when all its requests have been sent."""
    address, key = ("127.0.0.1", "attacker") if accounts == "keys" else ("127.0.0.2", "")
    command = [sys.executable, "-m", "benchmarks.greedy_client", str(port), attack, address, key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.strip() == READY, f"the attacker printed {line!r}"
            yield
        finally:
            process.kill()


def row(run: Run) -> list[str]:
    """Return one row of the table; times in milliseconds."""
    beside = run.beside or [float("inf")]
    times = (statistics.median(run.quiet), statistics.median(beside), max(beside))
    counts = [str(len(run.beside) + run.num_rejected), str(run.num_rejected)]
    word = "MISSED" if any(verdict.is_missed for verdict in run.verdicts) else ""
    return [run.name, *(number(1000 * each) for each in times), *counts, number(times[1] / times[0]), word]


def add_options(parser: Parser) -> None:
    """Add the options: models, attacks, accounts and seconds."""
    parser.add_argument("--models", help=f"of {', '.join(MODELS)}, default both")
    parser.add_argument("--attacks", help=f"of {', '.join(ATTACKS)}, default both")
    parser.add_argument("--accounts", help=f"of {', '.join(ACCOUNTS)}, default both")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement, default 5")


def run(args: argparse.Namespace) -> int:
    """Measure all, print the table, and judge."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        long = write_checkpoint("long", Path(folder) / "long")
        for model in chosen(args.models, MODELS, "models"):
            for attack in chosen(args.attacks, ATTACKS, "attacks"):
                for accounts in chosen(args.accounts, list(ACCOUNTS), "accounts"):
                    runs.append(measure(model, attack, accounts, args.seconds, long))
                    print("  ".join(row(runs[-1])), flush=True)
    head = ["milliseconds", "quiet", "beside", "slowest", "sent", "rejected", "factor"]
    print("\n".join(["", *table(own_terminal(), head, map(row, runs))]))
    return conclude(verdict for run in runs for verdict in run.verdicts)
