"""What one client costs the others: a normal stream while another client does the costliest thing of each kind.

`python -m benchmarks isolation [--models long,wide] [--only NAME,...] [--rounds N] [--seconds S]`. A server of its own
for each model and round. A normal client reads one stream and requests `/livez` fifty times a second, while a process
of the lowest priority attacks (`attacks.py`, `api_attacks.py`); in the row `idle` that process does nothing. Measured
are the times between the stream's tokens, the response times of `/livez`, and the lag of the server's event loop (from
`/metrics`).

Limits, for the medians of the rounds: the p99 of the times between tokens at most twice the quiet one plus 75 ms, the
p99 of `/livez` at most 100 ms. Exits 1 when a row exceeds them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import orjson

from app.commands.options import Parser
from app.loadgen.figures import percentile
from app.loadgen.table import number, table
from app.observe.terminal import own_terminal
from benchmarks.api_client import ApiClient
from benchmarks.attacks import ATTACKS
from benchmarks.checkpoints import CHANGES, write_checkpoint
from benchmarks.figures import write_json
from benchmarks.limits import Verdict, conclude, limits
from benchmarks.options import chosen
from benchmarks.piece_reader import PieceReader
from benchmarks.server_process import ServerProcess, serving

MAX_TOKENS, WARM_UP_TOKENS = 30_000, 100
LIVEZ_EVERY_S = 0.02
REST_S, HANG_S = 60.0, 60.0
END_S = 5.0
ATTACK_S = 30.0  # longest prompts and largest answers take longer than a row otherwise does
QUIET = "idle"


class Row(NamedTuple):
    """One attack in one round: p99 and maximum in seconds, and what came back to the attacker."""

    itl_p99_s: float
    itl_max_s: float
    livez_p99_s: float
    lag_p99_s: float
    num_tokens: int
    answers: dict[str, int]


class GoodClient:
    """One stream, and one connection for `/livez` that stays open, as another client than the attacker."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stream = PieceReader()
        self._livez_s: list[float] = []
        self._began = 0.0
        self.is_measuring = False

    async def read_stream(self) -> None:
        """Read one stream after the other; the time to the first token of the next counts as one between tokens."""
        body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": MAX_TOKENS}
        payload = orjson.dumps(body | {"ignore_eos": True, "temperature": 1, "stream": True})
        message = self._server.target.post("/v1/chat/completions", payload)
        while True:
            await self._server.client().exchange(message, self._stream)
            if b"data: [DONE]" not in self._stream.tail:
                raise RuntimeError(f"the stream has failed: {self._stream.status} {self._stream.tail[-1000:]!r}")
            times, self._stream = self._stream.times, PieceReader()
            self._stream.times = times

    async def ask_livez(self) -> None:
        """Ask for ever."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            while True:
                began = time.perf_counter()
                writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
                took = time.perf_counter() - began
                if self.is_measuring:
                    self._livez_s.append(took)
                await asyncio.sleep(max(0.0, LIVEZ_EVERY_S - took))
        finally:
            writer.transport.abort()

    async def until_warm(self) -> None:
        """Wait until the stream flows."""
        async with asyncio.timeout(HANG_S):
            while True:
                if len(self._stream.times) >= WARM_UP_TOKENS:
                    return
                await asyncio.sleep(0.01)

    def begin(self) -> None:
        """Forget what was measured so far."""
        del self._stream.times[:-1]
        self._livez_s.clear()
        self.is_measuring = True

    def measured(self) -> tuple[list[float], list[float]]:
        """Return the times between tokens, that of the next one included, and of `/livez`; the shortest first."""
        gaps = [two - one for one, two in pairwise([*self._stream.times, time.perf_counter()])]
        return sorted(gaps), sorted(self._livez_s)


async def until_idle(client: ApiClient) -> None:
    """Wait until nothing runs and nothing waits, so that rows do not share their work."""
    async with asyncio.timeout(REST_S):
        while True:
            page = (await client.get("/metrics")).content.decode()
            counts = re.findall(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? (\S+)", page, re.M)
            if counts and not any(map(float, counts)):
                return
            await asyncio.sleep(0.1)


async def lags(client: ApiClient) -> list[tuple[float, float]]:
    """Return the histogram of the loop's lag: (upper edge in seconds, count up to it)."""
    page = (await client.get("/metrics")).content.decode()
    edges = re.findall(r'^quire_event_loop_lag_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\S+)', page, re.M)
    return [(float(edge), float(count)) for edge, count in edges]


def lag_quantile(before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]], share: float) -> float:
    """Return the edge below which `share` of the lags between two looks lie."""
    counts = [(edge, two - one) for (edge, one), (_, two) in zip(before, after, strict=True)]
    total = counts[-1][1] if counts else 0.0
    return next((edge for edge, count in counts if total and count >= share * total), 0.0)


async def run_attack(output: asyncio.StreamReader, seconds: float) -> None:
    """Wait for `seconds`, and until the attacker has had an answer, at most `ATTACK_S`."""
    began = time.perf_counter()
    with suppress(TimeoutError):
        await asyncio.wait_for(output.readline(), ATTACK_S)
    await asyncio.sleep(seconds - (time.perf_counter() - began))


async def end(attacker: asyncio.subprocess.Process) -> None:
    """End the attacking process: by its input, or else by force."""
    assert attacker.stdin is not None
    attacker.stdin.close()
    try:
        await asyncio.wait_for(attacker.wait(), END_S)
    except TimeoutError:
        attacker.kill()
        await attacker.wait()


async def measure(server: ServerProcess, context: int, name: str, seconds: float) -> Row:
    """Measure the good client beside one attack."""
    good, client = GoodClient(server), server.client()
    tasks = [asyncio.create_task(good.read_stream()), asyncio.create_task(good.ask_livez())]
    attacker: asyncio.subprocess.Process | None = None
    try:
        await good.until_warm()
        attacker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.attacks", name, server.target.url, str(context),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert attacker.stdin is not None and attacker.stdout is not None
        await attacker.stdout.readline()
        before = await lags(client)
        good.begin()
        tasks.append(asyncio.create_task(run_attack(attacker.stdout, seconds)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        gaps, livez = good.measured()
        lag_s = lag_quantile(before, await lags(client), 0.99)
        attacker.stdin.close()
        answers = json.loads((await asyncio.wait_for(attacker.stdout.read(), HANG_S)).splitlines()[-1])
        return Row(percentile(gaps, 0.99), max(gaps), percentile(livez, 0.99), lag_s, len(gaps), answers)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if attacker is not None:
            await end(attacker)


def one_round(model: Path, context: int, names: Sequence[str], seconds: float, say: str) -> dict[str, Row | str]:
    """Measure all attacks against one server; what goes wrong is a text instead of a row."""
    rows: dict[str, Row | str] = {}
    with serving(str(model), "--load-format", "dummy") as server:
        for name in names:
            print(f"\r\033[K{say}: {name}" if sys.stderr.isatty() else f"{say}: {name}", end="", file=sys.stderr)
            try:
                rows[name] = row = asyncio.run(measure(server, context, name, seconds))
                print(
                    f"  itl {row.itl_p99_s * 1000:.1f} livez {row.livez_p99_s * 1000:.1f} ms {row.answers}",
                    file=sys.stderr,
                )
                asyncio.run(until_idle(server.client()))
            except (OSError, EOFError, RuntimeError, TimeoutError) as error:
                rows[name] = f"{type(error).__name__}: {error}"[:300]
                print(f"  {rows[name]}", file=sys.stderr)
    return rows


class Medians(NamedTuple):
    """The medians of a row's rounds; times in seconds."""

    itl_p99_s: float
    itl_max_s: float
    livez_p99_s: float
    lag_p99_s: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Medians:
        """Return those of some rounds."""
        return cls(*(statistics.median(getattr(row, name) for row in rows) for name in cls._fields))


def verdicts_of(found: Medians, quiet: Medians, what: str) -> list[Verdict]:
    """Hold a row against the quiet one."""
    factor, extra, livez = limits("isolation").values()
    allowed_s = factor.value * quiet.itl_p99_s + extra.value
    itl = replace(extra, name="p99 between tokens", value=allowed_s)
    return [Verdict(itl, found.itl_p99_s, what), Verdict(livez, found.livez_p99_s, what)]


def report(found: Mapping[str, Mapping[str, Sequence[Row | str]]]) -> int:
    """Print the table and what exceeds the limits or went wrong; return the exit code."""
    rows, verdicts, faults = [], list[Verdict](), list[str]()
    for model, by_name in found.items():
        quiet = [row for row in by_name[QUIET] if isinstance(row, Row)]
        for name, rounds in by_name.items():
            what = f"{model}, {name}"
            failures = [row for row in rounds if isinstance(row, str)] or ([] if quiet else ["nothing to compare with"])
            if failures:
                faults.append(f"{what}: {failures[0]}")
                continue
            usual, medians = Medians.of(quiet), Medians.of([row for row in rounds if isinstance(row, Row)])
            verdicts += (here := verdicts_of(medians, usual, what))
            word = "MISSED" if any(verdict.is_missed for verdict in here) else ""
            itl, *times = (number(1000 * seconds) for seconds in medians)
            factor = number(medians.itl_p99_s / usual.itl_p99_s)
            rows.append([f"{model}: {ATTACKS[name].what}", itl, factor, *times, word])
    head = ["one other client, ms", "p99 between tokens", "times quiet", "longest", "/livez p99", "loop lag p99"]
    print("\n".join(table(own_terminal(), head, rows)))
    return conclude(verdicts, faults)


def add_options(parser: Parser) -> None:
    """Add what is measured, how often, for how long, and where the figures go."""
    parser.add_argument("--models", help="long, wide or both (default)")
    parser.add_argument("--only", help="names of attacks; default all")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each model, default 3")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each row, default 6")
    parser.add_argument("--out", type=Path, help="write every value as JSON, such as to isolation.json")


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 if a limit is missed."""
    names = [QUIET, *(name for name in chosen(args.only, list(ATTACKS), "only") if name != QUIET)]
    found: dict[str, dict[str, list[Row | str]]] = {}
    with tempfile.TemporaryDirectory(prefix="quire-isolation-") as folder:
        for model in chosen(args.models, list(CHANGES), "models"):
            path = write_checkpoint(model, Path(folder) / model)
            found[model] = {name: [] for name in names}
            for turn in range(args.rounds):
                say = f"{model}, round {turn + 1} of {args.rounds}"
                context = CHANGES[model]["max_position_embeddings"]
                for name, row in one_round(path, context, names, args.seconds, say).items():
                    found[model][name].append(row)
    if args.out is not None:
        values = {
            model: {name: [row if isinstance(row, str) else row._asdict() for row in rows] for name, rows in by.items()}
            for model, by in found.items()
        }
        write_json(args.out, values)
    return report(found)
