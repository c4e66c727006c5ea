"""What pictures for the live view cost the engine thread, for each token: an engine in this process.

Each cell decodes a batch, and takes the same number of steps with somebody who watches and with nobody, in turns.
Times are `time.thread_time()` of `Engine.turn`, as the engine thread calls it; a repeat is the ratio of their sums.

    guide    32 sequences of the embedded model
    s135     32 sequences of that shape, random weights
    pool     a pool of 100,000 KV blocks, 256 sequences with 380 each, and a model that keeps the thread busy for 20 ms
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from app.contract.engine_picture import EnginePicture, Watch
from app.contract.engine_status import StepReport
from app.engine.engine import Engine
from app.engine.execute.interfaces import InFlight, Runner
from app.engine.schedule.step_plan import StepPlan
from app.runtime.clock import monotonic
from benchmarks.engine_load import add, greedy, load_model
from benchmarks.idle_engine import BLOCK_SIZE, IdleEngine
from benchmarks.passing_runner import PassingRunner

SETTLE = 20  # steps that are not counted
ORDER = (True, False, False, True)
"""Whether somebody watches, in turns, so that neither a longer text nor a faster machine counts for one side."""
NUM_POOL_BLOCKS, POOL_BATCH, STEP_S = 100_000, 256, 0.02


class BusyRunner(PassingRunner):
    """A runner whose steps keep the thread busy, as a model on a CPU does."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.seconds = 0.0

    def launch(self, plan: StepPlan) -> InFlight:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            sum(range(1000))  # to ask for the time all the time would keep the system busy, not the thread
        return self._runner.launch(plan)


@dataclass
class Found:
    """What one cell has measured: of each repeat the cost, as a share, and the pictures of all."""

    shares: list[float] = field(default_factory=list)
    token_us: list[float] = field(default_factory=list)  # with nobody who watches
    pictures: list[EnginePicture] = field(default_factory=list)
    watched_s: float = 0.0

    @property
    def picture_ms(self) -> list[float]:
        """What the pictures took."""
        return [1000 * picture.duration_s for picture in self.pictures]

    @property
    def rate(self) -> float:
        """Pictures in a second."""
        return len(self.pictures) / self.watched_s if self.watched_s else 0.0


class Cell(NamedTuple):
    """An engine, the batch that it decodes, the length of prompts, and the steps of each turn of on or off."""

    open: Callable[[], Engine]
    batch: int
    num_prompt: int
    num_steps: int
    num_turns: int = 2  # times ORDER


def _pool() -> Engine:
    num_prompt = CELLS["pool"].num_prompt
    idle = IdleEngine(
        num_blocks=NUM_POOL_BLOCKS,
        max_num_seqs=POOL_BATCH,
        max_tokens=16 * num_prompt,
        max_model_len=num_prompt + 1000,
    )
    idle.engine.runner = BusyRunner(idle.engine.runner)
    return idle.engine


CELLS = {
    "guide": Cell(lambda: load_model("guide", max_num_seqs=32).engine, batch=32, num_prompt=64, num_steps=150),
    "s135": Cell(lambda: load_model("s135", max_num_seqs=32).engine, batch=32, num_prompt=64, num_steps=60),
    "pool": Cell(_pool, batch=POOL_BATCH, num_prompt=355 * BLOCK_SIZE, num_steps=100, num_turns=1),
}


def measure(engine: Engine, cell: Cell, repeats: int) -> Found:
    """Measure a cell, every repeat with new sequences."""
    found = Found()
    for number in range(repeats):
        names = start(engine, cell, number)
        turns(engine, SETTLE)
        seconds = {True: 0.0, False: 0.0}
        for is_on in ORDER * cell.num_turns:
            engine.turn([Watch(is_on)], monotonic())
            gc.collect()
            wall, began = monotonic(), time.thread_time()
            reports = turns(engine, cell.num_steps)
            seconds[is_on] += time.thread_time() - began
            found.watched_s += (monotonic() - wall) * is_on
            assert all(report.num_decode_tokens == cell.batch for report in reports), "a step was no plain decode"
            found.pictures += [report.picture for report in reports if report.picture is not None]
        engine.turn([Watch(False)], monotonic())
        num_tokens = len(ORDER) // 2 * cell.num_turns * cell.num_steps * cell.batch
        found.shares.append(seconds[True] / seconds[False] - 1)
        found.token_us.append(1e6 * seconds[False] / num_tokens)
        for name in names:
            engine.abort(name, monotonic())
    return found


def start(engine: Engine, cell: Cell, number: int) -> list[str]:
    """Compute the prompts of a new batch, which then decodes for as many steps as it is asked for; return its ids."""
    names, rng = [f"{number}-{index}" for index in range(cell.batch)], random.Random(number)
    if isinstance(engine.runner, BusyRunner):
        engine.runner.seconds = 0.0
    num_new = SETTLE + len(ORDER) * cell.num_turns * (cell.num_steps + 1) + 100
    for name in names:
        add(engine, name, cell.num_prompt, greedy(num_new), rng)
    while engine.turn((), monotonic()).num_decode_tokens < cell.batch:
        pass
    if isinstance(engine.runner, BusyRunner):
        engine.runner.seconds = STEP_S
    return names


def turns(engine: Engine, count: int) -> list[StepReport]:
    """Take steps as the engine thread does."""
    return [engine.turn((), monotonic()) for _ in range(count)]
