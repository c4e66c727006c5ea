"""What one client costs the others: one good stream while another client does the costliest thing of each kind.

`python -m benchmarks isolation [--models long,wide] [--only NAME,...] [--rounds N] [--seconds S]`. A server of its own
for each model and round. A good client reads one stream and asks `/livez` fifty times a second, while a process of the
lowest priority attacks (`benchmarks/attacks.py`); in the row `idle` that process does nothing. Measured are the times
between the stream's tokens, the answers of `/livez`, and the lag of the server's event loop (from `/metrics`).

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
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.attacks import ATTACKS
from benchmarks.checkpoints import CHANGES, write_checkpoint
from benchmarks.server_process import serving

ITL_TARGET_S = 0.05
MAX_FACTOR, MAX_EXTRA_S = 2.0, 1.5 * ITL_TARGET_S
MAX_LIVEZ_S = 0.1
WARM_UP_TOKENS = 100
LIVEZ_EVERY_S = 0.02
REST_S, HANG_S = 60.0, 60.0
END_S = 5.0
ATTACK_S = 30.0  # longest prompts and largest answers take longer than a row otherwise does
RESULTS = Path(__file__).resolve().parent / "results" / "isolation.json"
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
    """One stream and one connection for `/livez`, as another client than the attacker."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._arrivals: list[float] = []
        self._livez_s: list[float] = []
        self.is_measuring = False

    async def read_stream(self) -> None:
        """Read a stream for ever, one after the other when it ends."""
        while True:
            body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 30_000}
            payload = json.dumps(body | {"ignore_eos": True, "temperature": 1, "stream": True}).encode()
            reader, writer = await self._open()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(payload)}\r\n"
            writer.write(f"{head}content-type: application/json\r\nconnection: close\r\n\r\n".encode() + payload)
            line = await reader.readline()
            if b" 200 " not in line:
                raise RuntimeError(f"the good stream was refused: {line!r} {await reader.read(4096)!r}")
            while chunk := await reader.read(65536):
                if b'data: {"error"' in chunk:
                    raise RuntimeError(f"the good stream failed: {chunk!r}")
                self._arrivals.append(time.perf_counter())

    async def ask_livez(self) -> None:
        """Ask for ever, over one connection."""
        reader, writer = await self._open()
        while True:
            began = time.perf_counter()
            writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"content-length: (\d+)", head.lower())[1]))  # type: ignore[index]
            took = time.perf_counter() - began
            if self.is_measuring:
                self._livez_s.append(took)
            await asyncio.sleep(max(0.0, LIVEZ_EVERY_S - took))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        """Hang up."""
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def until_warm(self) -> None:
        """Wait until the stream flows."""
        async with asyncio.timeout(HANG_S):
            while True:
                if len(self._arrivals) >= WARM_UP_TOKENS:
                    return
                await asyncio.sleep(0.01)

    def begin(self) -> None:
        """Forget what was measured so far."""
        del self._arrivals[:-1]
        self._livez_s.clear()
        self.is_measuring = True

    def measured(self) -> tuple[list[float], list[float]]:
        """Return the times between tokens, the one that has not ended included, and those of `/livez`."""
        gaps = [two - one for one, two in pairwise([*self._arrivals, time.perf_counter()])]
        return gaps, self._livez_s


async def get(port: int, path: str) -> tuple[int, str]:
    """Return status and body of a GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    answer = (await reader.read(-1)).decode()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


async def until_idle(port: int) -> None:
    """Wait until nothing runs and nothing waits, so that rows do not share their work."""
    async with asyncio.timeout(REST_S):
        while True:
            _, text = await get(port, "/metrics")
            counts = re.findall(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? (\S+)", text, re.M)
            if counts and not any(map(float, counts)):
                return
            await asyncio.sleep(0.1)


async def lags(port: int) -> list[tuple[float, float]]:
    """Return the histogram of the loop's lag: (upper edge in seconds, count up to it)."""
    _, text = await get(port, "/metrics")
    edges = re.findall(r'^quire_event_loop_lag_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\S+)', text, re.M)
    return [(float(edge), float(count)) for edge, count in edges]


def lag_quantile(before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]], share: float) -> float:
    """Return the edge below which `share` of the lags between two looks lie."""
    counts = [(edge, two - one) for (edge, one), (_, two) in zip(before, after, strict=True)]
    total = counts[-1][1] if counts else 0.0
    return next((edge for edge, count in counts if total and count >= share * total), 0.0)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


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


async def measure(port: int, context: int, name: str, seconds: float) -> Row:
    """Measure the good client beside one attack."""
    good = GoodClient(port)
    tasks = [asyncio.create_task(good.read_stream()), asyncio.create_task(good.ask_livez())]
    attacker: asyncio.subprocess.Process | None = None
    try:
        await good.until_warm()
        attacker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.attacks", name, f"http://127.0.0.1:{port}", str(context),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert attacker.stdin is not None and attacker.stdout is not None
        await attacker.stdout.readline()
        before = await lags(port)
        good.begin()
        tasks.append(asyncio.create_task(run_attack(attacker.stdout, seconds)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        gaps, livez = good.measured()
        lag_s = lag_quantile(before, await lags(port), 0.99)
        attacker.stdin.close()
        answers = json.loads((await asyncio.wait_for(attacker.stdout.read(), HANG_S)).splitlines()[-1])
        return Row(quantile(gaps, 0.99), max(gaps), quantile(livez, 0.99), lag_s, len(gaps), answers)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await good.close()
        if attacker is not None:
            await end(attacker)


def one_round(model: Path, context: int, names: Sequence[str], seconds: float, say: str) -> dict[str, Row | str]:
    """Measure all attacks against one server; what goes wrong is a text instead of a row."""
    rows: dict[str, Row | str] = {}
    with serving(str(model), "--load-format", "dummy") as server:
        for name in names:
            print(f"\r\033[K{say}: {name}" if sys.stderr.isatty() else f"{say}: {name}", end="", file=sys.stderr)
            try:
                rows[name] = row = asyncio.run(measure(server.port, context, name, seconds))
                print(
                    f"  itl {row.itl_p99_s * 1000:.1f} livez {row.livez_p99_s * 1000:.1f} ms {row.answers}",
                    file=sys.stderr,
                )
                asyncio.run(until_idle(server.port))
            except (OSError, EOFError, RuntimeError, TimeoutError) as error:
                rows[name] = f"{type(error).__name__}: {error}"[:300]
                print(f"  {rows[name]}", file=sys.stderr)
    return rows


class Verdict(NamedTuple):
    """The medians of a row's rounds against those of the quiet row; times in seconds."""

    itl_p99_s: float
    itl_max_s: float
    itl_factor: float
    livez_p99_s: float
    lag_p99_s: float
    is_within: bool


def judge(rows: Sequence[Row], quiet: Sequence[Row]) -> Verdict:
    """Hold a row against the limits."""
    itl, quiet_itl = (statistics.median(row.itl_p99_s for row in group) for group in (rows, quiet))
    livez = statistics.median(row.livez_p99_s for row in rows)
    is_within = itl <= MAX_FACTOR * quiet_itl + MAX_EXTRA_S and livez <= MAX_LIVEZ_S
    itl_max = statistics.median(row.itl_max_s for row in rows)
    return Verdict(itl, itl_max, itl / quiet_itl, livez, statistics.median(row.lag_p99_s for row in rows), is_within)


def report(found: dict[str, dict[str, list[Row | str]]]) -> bool:
    """Print the table; False if anything exceeds the limits or went wrong."""
    is_good = True
    print("| model | one other client | p99 between tokens | times quiet | longest | `/livez` p99 | loop lag p99 | |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    for model, by_name in found.items():
        quiet = [row for row in by_name[QUIET] if isinstance(row, Row)]
        for name, rows in by_name.items():
            measured = [row for row in rows if isinstance(row, Row)]
            head = f"| {model} | {name}: {ATTACKS[name].what}"
            failures = [row for row in rows if isinstance(row, str)]
            if failures or not quiet:
                print(f"{head} | | | | | | FAILED: {failures} |")
                is_good = False
                continue
            itl, longest, factor, livez, lag, is_within = judge(measured, quiet)
            is_good &= is_within
            verdict = "" if is_within else "MISSED"
            times = " | ".join(f"{seconds * 1000:.1f} ms" for seconds in (longest, livez, lag))
            print(f"{head} | {itl * 1000:.1f} ms | {factor:.1f} | {times} | {verdict} |")
    return is_good


def chosen(text: str | None, known: Sequence[str]) -> list[str]:
    """Return the names of a comma-separated list, all if there is none.

    Raises:
        SystemExit: one is unknown.
    """
    names = list(known) if text is None else text.split(",")
    if unknown := set(names) - set(known):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return names


def main() -> int:
    """Measure and print; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="long, wide or both (default)")
    parser.add_argument("--only", help="names of attacks; default all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--out", type=Path, help=f"write every value as JSON, such as to {RESULTS.name}")
    options = parser.parse_args()
    names = chosen(options.only, list(ATTACKS))
    names = [QUIET, *(name for name in names if name != QUIET)]
    found: dict[str, dict[str, list[Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="quire-isolation-") as folder:
        for model in chosen(options.models, list(CHANGES)):
            path = write_checkpoint(model, Path(folder) / model)
            found[model] = {name: [] for name in names}
            for number in range(options.rounds):
                say = f"{model}, round {number + 1} of {options.rounds}"
                context = CHANGES[model]["max_position_embeddings"]
                for name, row in one_round(path, context, names, options.seconds, say).items():
                    found[model][name].append(row)
    is_good = report(found)
    if options.out is not None:
        values = {
            model: {name: [row if isinstance(row, str) else row._asdict() for row in rows] for name, rows in by.items()}
            for model, by in found.items()
        }
        options.out.write_text(json.dumps(values, indent=1) + "\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
