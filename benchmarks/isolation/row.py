"""One row of one round: the good client beside one attack, and what the server is like afterwards."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeVar

from app.loadgen.figures import percentile
from benchmarks.api_client import ApiClient
from benchmarks.isolation.attack_table import ATTACKS
from benchmarks.isolation.attacking import attacking
from benchmarks.isolation.good_client import Figures, GoodClient
from benchmarks.isolation.memory import Growth
from benchmarks.isolation.setups import KV_CACHE_BYTES
from benchmarks.server_process import ServerProcess

REST_S = 180.0  # kept answers go on: the 51,200 tokens of a row take 90 s on `wide`
METRICS_S = 10.0
LOOK_EVERY_S = 0.2
MAX_GROWTH_BYTES = 3 << 30
"""A server that takes more is ended, so that the machine goes on."""

FAILURES = (OSError, EOFError, RuntimeError, TimeoutError)
"""What a server or an attacking process that fails raises in its clients."""

Found = TypeVar("Found")
Lags = Sequence[tuple[float, float]]


class Row(NamedTuple):
    """One attack in one round; times in seconds.

    Attributes:
        itl_p99_s, itl_max_s: between tokens; None for a client without a stream.
        chat_s, schema_s, embedding_s: the longest wait for the first token of a new request; None if there was none.
        lag_p99_s: of the server's event loop, as an upper edge of its histogram.
        grown_bytes: the most memory beyond that before the attack.
        kept_bytes, back_s, exit_s: of the last round: memory afterwards beyond that before the attack, how long it was
            looked at, and how long SIGTERM took to end the server.
        answers: what came back to the attacker.
    """

    itl_p99_s: float | None
    itl_max_s: float | None
    livez_p99_s: float
    livez_max_s: float
    chat_s: float | None
    schema_s: float | None
    embedding_s: float | None
    lag_p99_s: float
    grown_bytes: int
    num_tokens: int
    answers: dict[str, int]
    kept_bytes: int | None = None
    back_s: float | None = None
    exit_s: float | None = None

    def __str__(self) -> str:
        new = {"chat": self.chat_s, "schema": self.schema_s, "embedding": self.embedding_s}
        waits = [f"{name} {1000 * seconds:.0f}" for name, seconds in new.items() if seconds is not None]
        itl = ""
        if self.itl_p99_s is not None and self.itl_max_s is not None:
            itl = f"itl {1000 * self.itl_p99_s:.1f}, longest {1000 * self.itl_max_s:.0f}; "
        return (
            f"{itl}livez {1000 * self.livez_p99_s:.1f}, longest {1000 * self.livez_max_s:.0f}; {', '.join(waits)} ms; "
            f"memory {self.grown_bytes / 2**20:+.0f} MiB{self._end()}; {self.answers}"
        )

    def _end(self) -> str:
        if self.kept_bytes is None:
            return ""
        return f", {self.kept_bytes / 1e6:+.0f} MB after {self.back_s:.1f} s, SIGTERM {self.exit_s:.1f} s"


class Attacker(Protocol):
    """Who attacks: see `attacking.AttackerProcess`."""

    async def until_ready(self) -> None:
        """Wait until it can begin."""

    async def attack(self, seconds: float) -> None:
        """Attack for about so long."""

    async def end(self) -> dict[str, int]:
        """End, and return what came back to it."""


async def measure(server: ServerProcess, context: int, name: str, seconds: float) -> tuple[Row, Growth]:
    """Measure the good client beside one attack of the table; raises as `measure_beside`."""
    setup = ATTACKS[name].setup
    return await measure_beside(
        server, attacking(name, server, context), seconds, setup.good_key, has_stream=setup.has_stream
    )


async def measure_beside(
    server: ServerProcess,
    attacking: AbstractAsyncContextManager[Attacker],
    seconds: float,
    key: str | None = None,
    *,
    has_stream: bool = True,
) -> tuple[Row, Growth]:
    """Measure the good client, perhaps with a key, beside an attack. What goes wrong has the figures so far as a note.

    Raises:
        OSError, EOFError, RuntimeError, TimeoutError: the server or the attacking process has failed.
    """
    good = GoodClient(server.target._replace(key=key), has_stream)
    client = server.client(METRICS_S, key)
    tasks = good.start()
    try:
        async with attacking as attacker:
            await beside(tasks, good.until_warm())
            await attacker.until_ready()
            growth, before = Growth(server.pid, KV_CACHE_BYTES), await lags(client)
            tasks.append(asyncio.create_task(watch(growth)))
            good.begin()
            try:
                await beside(tasks, attacker.attack(seconds))
                found = good.figures()
                lag_s = lag_quantile(before, await beside(tasks, lags(client)), 0.99)
            except FAILURES as error:
                error.add_note(f"{good.figures()}, memory {growth.peak / 2**20:+.0f} MiB")
                raise
            growth.observe()
            return _row(found, lag_s, growth, await attacker.end()), growth
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _row(found: Figures, lag_s: float, growth: Growth, answers: dict[str, int]) -> Row:
    gaps, livez, waits = found
    itl_p99_s, itl_max_s = (percentile(gaps, 0.99), gaps[-1]) if gaps else (None, None)
    times = itl_p99_s, itl_max_s, percentile(livez, 0.99), livez[-1]
    return Row(*times, waits["chat"], waits["schema"], waits["embedding"], lag_s, growth.peak, len(gaps), answers)


async def beside(tasks: Sequence[asyncio.Task[None]], awaited: Awaitable[Found]) -> Found:
    """Await `awaited` and return its result, or raise what one of the tasks raises meanwhile."""
    waited = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait([*tasks, waited], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return await waited
    finally:
        waited.cancel()


async def watch(growth: Growth) -> None:
    """Observe the server's memory for ever.

    Raises:
        RuntimeError: it takes more than MAX_GROWTH_BYTES.
    """
    while True:
        if (grown := growth.observe()) > MAX_GROWTH_BYTES:
            raise RuntimeError(f"the server took {grown / 2**30:.1f} GiB more memory, and was ended for that")
        await asyncio.sleep(LOOK_EVERY_S)


async def until_idle(client: ApiClient) -> None:
    """Wait until nothing runs and nothing waits, so that rows do not share their work.

    Raises:
        RuntimeError: that takes longer than REST_S.
    """
    ends = asyncio.get_running_loop().time() + REST_S
    while True:
        page = (await client.get("/metrics")).content.decode()
        counts = re.findall(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? (\S+)", page, re.M)
        if counts and not any(map(float, counts)):
            return
        if asyncio.get_running_loop().time() > ends:
            raise RuntimeError(f"what the attack had begun did not end within {REST_S:.0f} s")
        await asyncio.sleep(0.1)


async def lags(client: ApiClient) -> Lags:
    """Return the histogram of the loop's lag: (upper edge in seconds, count up to it)."""
    page = (await client.get("/metrics")).content.decode()
    edges = re.findall(r'^quire_event_loop_lag_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\S+)', page, re.M)
    return [(float(edge), float(count)) for edge, count in edges]


def lag_quantile(before: Lags, after: Lags, share: float) -> float:
    """Return the edge below which `share` of the lags between two looks lie."""
    counts = [(edge, two - one) for (edge, one), (_, two) in zip(before, after, strict=True)]
    total = counts[-1][1] if counts else 0.0
    return next((edge for edge, count in counts if total and count >= share * total), 0.0)
