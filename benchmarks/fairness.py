"""How long one client's short request takes beside another client who takes all it can get.

`python -m benchmarks fairness [--models guide,long] [--attacks starts,sleeping] [--seconds N]`. A server in a process
of its own, and an attacker in another one, at the lowest CPU priority (see `greedy_client.py`): 1,000 starts of long
answers at once, or 300 streams of quire.v1 that are never read. The two are told apart by their addresses (127.0.0.2
attacks, 127.0.0.1 asks), and in a second round by their keys. The short request, 16 tokens of answer to a prompt of
32, is sent again and again, each time on a connection of its own: first while the attacker is idle, then beside it.

Exits 1 where a short request is refused, where the slowest is more than a second slower than the quiet median
(`guide`), or where the median is more than three times it (`long`).
"""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.checkpoints import write_checkpoint
from benchmarks.server_process import serving

MAX_DELAY_S = 1.0
MAX_FACTOR = 3.0
NUM_PROMPT, NUM_NEW = 32, 16
VOCAB_SIZE = 3000  # of all models
GIVE_UP_S = 10.0  # a short request that takes longer counts as this long
PAUSE_S = 0.02  # between two short requests: their client is no flood
READY = "all sent"
ACCOUNTS = {"addresses": (), "keys": ("--api-key", "attacker", "--api-key", "asker")}


class Run(NamedTuple):
    """Seconds that each short request took, and how many were refused; `beside` the attacker or before it."""

    model: str
    attack: str
    accounts: str
    quiet: list[float]
    beside: list[float]
    num_refused: int

    @property
    def factor(self) -> float:
        """How many times as long the median request took."""
        return statistics.median(self.beside) / statistics.median(self.quiet) if self.beside else float("inf")

    @property
    def delay(self) -> float:
        """By how many seconds the slowest request took longer than the quiet median."""
        return max(self.beside) - statistics.median(self.quiet) if self.beside else float("inf")

    @property
    def is_met(self) -> bool:
        """Whether the attacker's company costs no more than it may."""
        within = self.delay <= MAX_DELAY_S if self.model == "guide" else self.factor <= MAX_FACTOR
        return within and not self.num_refused


def measure(model: str, attack: str, accounts: str, seconds: float, folder: Path) -> Run:
    """Measure short requests before and beside an attack."""
    options = ACCOUNTS[accounts]
    path = [] if model == "guide" else [str(folder), "--load-format", "dummy"]
    with serving(*path, *options) as server:
        quiet, refused = ask_for(seconds, server.port, accounts)
        assert not refused, "a quiet server refuses"
        with attacker(server.port, attack, accounts):
            beside, refused = ask_for(seconds, server.port, accounts)
    return Run(model, attack, accounts, quiet, beside, refused)


def ask_for(seconds: float, port: int, accounts: str) -> tuple[list[float], int]:
    """Send short requests for so many seconds; return what each took, and how many were refused."""
    taken, num_refused, rng = [], 0, random.Random(port)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        if ask(port, [rng.randrange(10, VOCAB_SIZE) for _ in range(NUM_PROMPT)], accounts):
            taken.append(time.monotonic() - began)
        else:
            num_refused += 1
        time.sleep(PAUSE_S)
    return taken, num_refused


def ask(port: int, prompt: Sequence[int], accounts: str) -> bool:
    """Send one short request; False if it is refused."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GIVE_UP_S)
    headers = {"content-type": "application/json"} | ({"x-api-key": "asker"} if accounts == "keys" else {})
    body = {"prompt": prompt, "max_tokens": NUM_NEW, "temperature": 0, "ignore_eos": True}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200
    except TimeoutError:
        return True
    finally:
        connection.close()


@contextmanager
def attacker(port: int, attack: str, accounts: str) -> Iterator[None]:
    """Run the greedy client, from when all its requests have been sent."""
    address, key = ("127.0.0.1", "attacker") if accounts == "keys" else ("127.0.0.2", "")
    command = [sys.executable, "-m", "benchmarks.greedy_client", str(port), attack, address, key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.strip() == READY, f"the attacker says {line!r}"
            yield
        finally:
            process.kill()


def print_table(runs: Sequence[Run]) -> None:
    """Print one line per run; times in milliseconds."""
    print(f"{'':30}{'quiet':>9}{'beside':>9}{'slowest':>9}{'asked':>7}{'refused':>9}{'factor':>8}")
    for run in runs:
        name = f"{run.model}, {run.attack}, {run.accounts}"
        times = (statistics.median(run.quiet), statistics.median(run.beside or [0.0]), max(run.beside, default=0.0))
        asked = len(run.beside) + run.num_refused
        figures = "".join(f"{1000 * each:>9.1f}" for each in times) + f"{asked:>7}{run.num_refused:>9}"
        print(f"{name:30}{figures}{run.factor:>8.1f}{'' if run.is_met else '  MISSED'}", flush=True)


def main() -> int:
    """Measure all, print the table, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="guide,long", help="of guide and long, default both")
    parser.add_argument("--attacks", default="starts,sleeping", help="of starts and sleeping, default both")
    parser.add_argument("--accounts", default="addresses,keys", help="of addresses and keys, default both")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long is asked quietly, and beside; default 5")
    args = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        long = write_checkpoint("long", Path(folder) / "long")
        for model in args.models.split(","):
            for attack in args.attacks.split(","):
                for accounts in args.accounts.split(","):
                    runs.append(measure(model, attack, accounts, args.seconds, long))
                    print_table(runs[-1:])
    print()
    print_table(runs)
    return int(not all(run.is_met for run in runs))


if __name__ == "__main__":
    sys.exit(main())
