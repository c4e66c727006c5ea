"""Step times beside an event loop, and how late the loop is: `python -m benchmarks busy_loop [--rounds N]`.

The s135 shape with random weights decodes 1, 8 and 32 sequences in the engine's thread, while the main thread's event
loop is asleep ("alone"), runs Python for a tenth of the time, or all the time; with the switch interval that a server
sets. The three take turns. Exits 1 when a median step is slowed by more than the limits.

The delay of the loop's callbacks, by the interpreter lock or for lack of a core, is measured by a loop that wakes every
millisecond, beside a busy engine and an idle one.
"""

import argparse
import asyncio
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from app.commands.options import Parser
from app.engine.engine import Engine
from app.runtime.clock import monotonic
from app.server.run import SWITCH_INTERVAL_S
from benchmarks.engine_load import add, greedy, load_model
from benchmarks.limits import conclude, judge, limits

SHAPE = "s135"
BATCHES = (1, 8, 32)
NUM_PROMPT = 64
NUM_SETTLE = 60  # steps that are not counted: the engine finds out how many threads are best beside this loop
NUM_STEPS = 40
NUM_NEW = 200  # more than the steps beside one loop
PERIOD_S = 0.01  # of the loop that is busy for a tenth of the time
TICK_S = 0.001
SHARES = {"alone": 0.0, "10 % busy": 0.1, "saturated": 1.0}

Loop = Callable[[Callable[[], bool]], Coroutine[Any, Any, None]]
"""A coroutine that runs until the engine is done."""


async def busy(share: float, is_over: Callable[[], bool]) -> None:
    """A loop whose callbacks hold the interpreter lock for a share of the time; with all of it, it never sleeps."""
    while not is_over():
        end = time.perf_counter() + PERIOD_S * min(share, 0.1)
        while time.perf_counter() < end:
            pass
        await asyncio.sleep(PERIOD_S * 0.9 if share < 1 else 0)


class Stepping:
    """An engine that decodes a batch in a thread of its own, from the end of the prefill on."""

    def __init__(self, engine: Engine, batch: int, name: str) -> None:
        self.engine = engine
        self._ids = [f"{name}-{index}" for index in range(batch)]
        rng = random.Random(name)
        for request_id in self._ids:
            add(engine, request_id, NUM_PROMPT, greedy(NUM_NEW), rng)
        while True:
            report = engine.turn((), monotonic())
            if (report.num_prefill_tokens, report.num_decode_tokens) == (0, batch):
                break

    def beside(self, loop: Loop | None, num_steps: int) -> list[float]:
        """Take steps beside a loop, or alone; return their times in seconds."""
        times: list[float] = []

        def work() -> None:
            for _ in range(num_steps):
                started = time.perf_counter()
                self.engine.step(monotonic())
                times.append(time.perf_counter() - started)

        thread = threading.Thread(target=work)
        thread.start()
        if loop is not None:
            asyncio.run(loop(lambda: not thread.is_alive()))
        thread.join()
        return times

    def __enter__(self) -> "Stepping":
        return self

    def __exit__(self, *_: object) -> None:
        """Give all sequences up."""
        for request_id in self._ids:
            self.engine.abort(request_id, monotonic())
        while self.engine.has_ready_work:
            self.engine.step(monotonic())


class Ticks:
    """A loop that wakes every millisecond and notes how late it is; seconds."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Tick until the engine is done, at least once."""
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.delays.append(time.perf_counter() - due)
            if is_over():
                return


def measure(engine: Engine, batch: int, rounds: int) -> dict[str, list[float]]:
    """Return the median step of each round beside each loop."""
    medians: dict[str, list[float]] = {name: [] for name in SHARES}
    ticks = Ticks()
    for turn in range(rounds):
        for name, share in SHARES.items():
            # New sequences: a longer context would make later steps slower.
            with Stepping(engine, batch, f"{batch}-{turn}-{name}") as stepping:
                times = stepping.beside(partial(busy, share) if share else None, NUM_SETTLE + NUM_STEPS)[NUM_SETTLE:]
            medians[name].append(statistics.median(times))
            print(f"batch {batch:<3}{name:11}{describe(times)}", flush=True)
        with Stepping(engine, batch, f"{batch}-{turn}-ticks") as stepping:
            stepping.beside(ticks.run, NUM_STEPS)
    print(f"batch {batch:<3}{'loop late':11}{describe(ticks.delays)}", flush=True)
    return medians


def describe(times: Sequence[float]) -> str:
    """Return the spread of some times in words."""
    ordered = sorted(times)
    shares = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    return ", ".join(
        f"{name} {1e3 * ordered[int(share * (len(ordered) - 1))]:.2f} ms" for name, share in shares.items()
    )


def resting_ticks() -> Sequence[float]:
    """Return how late the loop is while nothing else runs."""
    ticks, end = Ticks(), time.perf_counter() + 0.5
    asyncio.run(ticks.run(lambda: time.perf_counter() > end))
    return ticks.delays


def add_options(parser: Parser) -> None:
    """Add how often, and how many sequences."""
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each batch, default 5")
    parser.add_argument("--batch", type=int, choices=BATCHES, action="append", help="only this many sequences")


def run(args: argparse.Namespace) -> int:
    """Measure, print, and judge."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    llm = load_model(SHAPE, max_model_len=512, num_kv_blocks=max(BATCHES) * 512 // 16)
    print(f"engine at rest: the loop is late by {describe(resting_ticks())}")
    verdicts = []
    for batch in args.batch or BATCHES:
        medians = measure(llm.engine, batch, args.rounds)
        alone = statistics.median(medians["alone"])
        for name in limits("busy_loop"):
            verdict = judge("busy_loop", name, statistics.median(medians[name]) / alone, f"batch {batch}")
            verdicts.append(verdict)
            print(verdict, flush=True)
    return conclude(verdicts)
