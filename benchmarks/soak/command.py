"""Half an hour of all kinds of clients: does every answer arrive, does nothing grow?

`make soak MINUTES=30`, or `python -m benchmarks soak [--minutes N] [--checks [R1,R2]] [--out FILE]`. Clients ask
`guide` over server-sent events, lines of JSON and quire.v1, for answers of all kinds, among them schemas and calls of
tools; they read, read slowly, come back, vanish, cancel, are stopped with SIGSTOP for a while, ask for too much, and
attack. Every byte is compared with the answer of a server that nobody has disturbed. In the first half the server is
killed three times with SIGKILL, a third of it apart, and started again on the same port; in the second half it is not,
and its memory, descriptors, threads, tasks and processes are watched.

Complete and correct must be 99.9 % of the well-behaved requests: those of resumable answers, and plain ones that no
kill met. With `--checks` the other promises of docs/reliability.md are tested before (`soak/promises.py`), or some of
them by their names, which takes longer than the soak; with `--minutes 0` they alone. What a run does not measure stays
in FILE. Exits 1 where a limit is missed or a check failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.commands.measuring.machine import describe_run
from app.commands.options import Parser
from app.contract.errors import ConfigurationError
from app.loadgen.table import table
from app.observe.terminal import own_terminal
from app.runtime.process_limits import raise_file_limit
from benchmarks.figures import write_json
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.options import chosen
from benchmarks.resuming.asked import requests
from benchmarks.resuming.mortal_server import MortalServer
from benchmarks.resuming.oracle import Oracle
from benchmarks.server_process import listening
from benchmarks.soak.crowd import Crowd
from benchmarks.soak.holdings import Holdings, look, slope, watch
from benchmarks.soak.promises import PROMISES, Checked, check_all
from benchmarks.soak.visits import ATTACKER_KEY, End, Visitor
from benchmarks.stopping import stopped_by_signals

MODEL = "guide"
OPTIONS = ("--resume-memory", "4MiB", "--kv-cache-memory", "64MiB", "--api-key", ATTACKER_KEY)
"""Bounds that are reached soon, so that growth beyond them shows."""
NUM_CLIENTS, NUM_REQUESTS, MAX_TOKENS = 24, 54, 64
NUM_KILLS = 3
WARM_UP_SHARE = 0.2  # of the second half
IDLE_S = 15.0


@dataclass
class Soak:
    """What was found.

    Attributes:
        first, second: the visits of the two halves.
        base, last: what the server held before and after the rest of the second half, without clients.
        samples: the same each second between them.
        orphans: the processes that have outlived their server.
    """

    first: Crowd
    second: Crowd
    base: Holdings | None = None
    last: Holdings | None = None
    samples: list[Holdings] = field(default_factory=list)
    num_kills: int = 0
    orphans: list[int] = field(default_factory=list)


def add_options(parser: Parser) -> None:
    """Add for how long, whether all promises are tested, and where the figures go."""
    parser.add_argument("--minutes", type=float, default=30.0, help="of both halves together, default 30")
    parser.add_argument("--clients", type=int, default=NUM_CLIENTS, help=f"at once, default {NUM_CLIENTS}")
    parser.add_argument("--seed", type=int, default=1, help="of the behaviours, default 1")
    parser.add_argument(
        "--checks",
        nargs="?",
        const=",".join(PROMISES),
        metavar="NAMES",
        help="test the other promises before, or these, comma-separated",
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON, such as to soak.json")


def run(args: argparse.Namespace) -> int:
    """Soak, print and judge."""
    if args.minutes < 0 or args.clients < 1 or not (args.minutes or args.checks):
        raise ConfigurationError("--minutes and --clients must be positive; --minutes 0 is for --checks alone")
    names = [] if args.checks is None else chosen(args.checks, list(PROMISES), "checks")
    raise_file_limit()
    checks = check_all({name: PROMISES[name] for name in names})
    save(args.out, {}, checks)
    failed = [f"{name}: {checked.says}" for name, checked in checks.items() if not checked.is_kept]
    if not args.minutes:
        return conclude([], failed)
    with tempfile.TemporaryDirectory(prefix="quire-soak-") as folder, stopped_by_signals():
        found = asyncio.run(soak(args, Path(folder)))
    verdicts = [*_verdicts(found)]
    print("\n".join(_table(found)))
    print(*verdicts, sep="\n")
    faults = [*found.first.faults, *found.second.faults]
    faults += [f"process {pid} has outlived its server" for pid in found.orphans]
    about = {**describe_run(("torch",)), "minutes": args.minutes, "clients": args.clients}
    save(args.out, {**about, **_figures(found, verdicts), "faults": faults}, {})
    for line in faults:
        print(f"fault: {line}")
    return conclude(verdicts, [*failed, *(line for line in faults if line.startswith("process"))])


def save(file: Path | None, found: Mapping[str, object], checks: Mapping[str, Checked]) -> None:
    """Write what was found, if there is a file for it, over what is there; what was not measured now stays."""
    if file is not None:
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"benchmark": "soak"}
        checked = {**before.pop("checks", {}), **{name: one._asdict() for name, one in checks.items()}}
        in_order = {name: checked[name] for name in PROMISES if name in checked}
        write_json(file, {**before, **found, "checks": in_order})


async def soak(args: argparse.Namespace, folder: Path) -> Soak:
    """Let the clients come, in both halves."""
    asked, oracle, rng = [*requests(NUM_REQUESTS, MAX_TOKENS)], Oracle(), random.Random(args.seed)
    with listening(MODEL) as undisturbed:
        await undisturbed.wait_until_ready()
        await oracle.learn(asked, undisturbed.target)
    half_s = 30 * args.minutes
    async with MortalServer(MODEL, folder / "journal", OPTIONS) as server:
        visitor = Visitor(server, oracle, rng)
        found = Soak(Crowd(visitor, asked), Crowd(visitor, asked))
        try:
            found.first.start(args.clients)
            for number in range(NUM_KILLS):
                await asyncio.sleep(half_s / NUM_KILLS)
                _say(found.first, f"kill {number + 1} of {NUM_KILLS}")
                server.kill()
                await server.until_dead()
                await server.start()
                await server.until_ready()
            await found.first.rest()
            _say(found.first, "the first half is over")
            await _second_half(found, server, args.clients, half_s)
        finally:
            found.first.stop()
            found.second.stop()
        found.num_kills, found.orphans = server.num_kills, server.orphans
    return found


async def _second_half(found: Soak, server: MortalServer, num_clients: int, half_s: float) -> None:
    found.second.start(num_clients)
    await asyncio.sleep(WARM_UP_SHARE * half_s)
    await found.second.rest()
    found.base = await _idle(server)
    watching = asyncio.create_task(watch(server, found.samples))
    found.second.start(num_clients)
    await asyncio.sleep((1 - WARM_UP_SHARE) * half_s)
    await found.second.rest()
    watching.cancel()
    found.last = await _idle(server)
    _say(found.second, "the second half is over")


async def _idle(server: MortalServer) -> Holdings:
    """Return what the server holds when its clients have gone, and what they left has ended."""
    await asyncio.sleep(IDLE_S)
    return await look(server)


def _verdicts(found: Soak) -> list[Verdict]:
    assert found.base is not None and found.last is not None
    both = [
        judge("soak", "well-behaved requests, complete and correct", crowd.availability, name)
        for name, crowd in (("with kills", found.first), ("without", found.second))
    ]
    grown = found.last.resident - found.base.resident
    return [
        *both,
        judge("soak", "memory grown", grown / 1e6),
        *(
            judge("soak", f"more {name}", getattr(found.last, name) - getattr(found.base, name))
            for name in ("descriptors", "threads", "tasks", "processes")
        ),
    ]


def _table(found: Soak) -> list[str]:
    names = sorted({name for crowd in (found.first, found.second) for name, _ in crowd.ends})
    rows = [
        [f"{name}, {half}", *(str(crowd.ends[name, end]) for end in End)]
        for name in names
        for half, crowd in (("with kills", found.first), ("without", found.second))
    ]
    return table(own_terminal(), ["visits", *End], rows)


def _figures(found: Soak, verdicts: list[Verdict]) -> dict[str, object]:
    visits = {
        half: {f"{name}: {end}": count for (name, end), count in sorted(crowd.ends.items())}
        for half, crowd in (("with kills", found.first), ("without", found.second))
    }
    return {
        "kills": found.num_kills,
        "visits": visits,
        "figures": {": ".join(filter(None, (each.what, each.limit.name))): each.figure for each in verdicts},
        "memory grows, bytes a second": round(slope(found.samples)),
        "held": [each._asdict() for each in (found.base, found.last) if each is not None],
    }


def _say(crowd: Crowd, what: str) -> None:
    bad = crowd.count(End.WRONG, End.FAILED)
    print(
        f"{what}: {crowd.count(*End):,} visits, {crowd.count(End.GOOD):,} complete and correct, {bad} bad", flush=True
    )
