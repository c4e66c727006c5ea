"""What pictures for the live view cost the engine thread, for each token: an engine in this process.

Each cell decodes a batch, and takes the same number of steps with somebody who watches and with nobody, in turns.
Times are `time.thread_time()` of `Engine.turn`, as the engine thread calls it; a repeat is the ratio of their sums.
What a picture takes is also counted: how much longer its step and those after it are than the other steps of the same
turn, and what it takes to record each step for it.

    guide    32 sequences of the embedded model
    s135     32 sequences of that shape, random weights
    pool     a pool of 100,000 KV blocks, 256 sequences with 380 each, and a model that keeps the thread busy for 20 ms
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from app.contract.engine_picture import Watch
from app.engine.engine import Engine
from app.engine.execute.interfaces import InFlight, Runner
from app.engine.schedule.step_plan import StepPlan
from app.runtime.clock import monotonic
from benchmarks.engine_load import add, greedy, load_model
from benchmarks.idle_engine import BLOCK_SIZE, IdleEngine
from benchmarks.live.counted_view import CountedView
from benchmarks.passing_runner import PassingRunner

SETTLE = 20  # steps that are not counted
ORDER = (True, False, False, True)
"""Whether somebody watches, in turns, so that neither a longer text nor a faster machine counts for one side."""
NUM_AFTER = 3
"""Steps after one with a picture that it may make slower, since it takes the place of others' data in the caches."""
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


class Step(NamedTuple):
    """The processor time of a step, in seconds, and in it that of the picture at its end; None without one."""

    seconds: float
    picture_s: float | None


@dataclass
class Found:
    """What one cell has measured: of each repeat the cost, as a share, and of all turns that were watched the steps."""

    shares: list[float] = field(default_factory=list)
    token_us: list[float] = field(default_factory=list)  # with nobody who watches
    turns: list[list[Step]] = field(default_factory=list)  # that were watched
    recording_s: list[float] = field(default_factory=list)  # of a step
    watched_s: float = 0.0

    @property
    def picture_ms(self) -> list[float]:
        """What each picture took."""
        return [1000 * step.picture_s for turn in self.turns for step in turn if step.picture_s is not None]

    @property
    def rate(self) -> float:
        """Pictures in a second."""
        return len(self.picture_ms) / self.watched_s if self.watched_s else 0.0

    @property
    def counted(self) -> float | None:
        """What pictures and records take, as a share of all that is not theirs; None if that is not known.

        The step with a picture and the NUM_AFTER after it are compared with the median of the turn's other steps.
        """
        longer: list[list[float]] = [[] for _ in range(1 + NUM_AFTER)]
        others_s = records_s = 0.0
        record_s = statistics.median(self.recording_s) if self.recording_s else 0.0
        for turn in self.turns:
            since = num_since(turn)
            others = [step.seconds for step, number in zip(turn, since, strict=True) if number > NUM_AFTER]
            if not others:
                continue
            usual_s = statistics.median(others)
            others_s += (usual_s - record_s) * len(turn)
            records_s += record_s * len(turn)
            for step, number in zip(turn, since, strict=True):
                if number <= NUM_AFTER:
                    longer[number].append(step.seconds - usual_s)
        if not all(longer):
            return None
        return (records_s + sum(map(statistics.median, longer)) * len(longer[0])) / others_s


class Cell(NamedTuple):
    """An engine, the batch that it decodes, the length of prompts, and the steps of each turn of on or off."""

    open: Callable[[], Engine]
    batch: int
    num_prompt: int
    num_steps: int
    num_turns: int = 2  # times ORDER


def pool_cell(num_blocks: int) -> Cell:
    """Return a pool of so many KV blocks, nearly full: as many sequences as the large one has for its size."""
    batch, num_prompt = num_blocks * POOL_BATCH // NUM_POOL_BLOCKS, 355 * BLOCK_SIZE
    return Cell(partial(_pool, num_blocks, batch, num_prompt), batch, num_prompt, num_steps=100, num_turns=1)


def _pool(num_blocks: int, batch: int, num_prompt: int) -> Engine:
    idle = IdleEngine(
        num_blocks=num_blocks, max_num_seqs=batch, max_tokens=16 * num_prompt, max_model_len=num_prompt + 1000
    )
    idle.engine.runner = BusyRunner(idle.engine.runner)
    return idle.engine


CELLS = {
    "guide": Cell(lambda: load_model("guide", max_num_seqs=32).engine, batch=32, num_prompt=64, num_steps=150),
    "s135": Cell(lambda: load_model("s135", max_num_seqs=32).engine, batch=32, num_prompt=64, num_steps=60),
    "pool": pool_cell(NUM_POOL_BLOCKS),
}


def measure(engine: Engine, cell: Cell, repeats: int) -> Found:
    """Measure a cell, every repeat with new sequences."""
    found = Found()
    for number in range(repeats):
        names = start(engine, cell, number)
        found.recording_s += recorded(engine, cell._replace(num_steps=SETTLE))
        seconds = {True: 0.0, False: 0.0}
        for is_on in ORDER * cell.num_turns:
            engine.turn([Watch(is_on)], monotonic())
            gc.collect()
            wall, began = monotonic(), time.thread_time()
            steps = turns(engine, cell)
            seconds[is_on] += time.thread_time() - began
            if is_on:
                found.watched_s += monotonic() - wall
                found.turns.append(steps)
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


def turns(engine: Engine, cell: Cell) -> list[Step]:
    """Take the steps of a turn as the engine thread does."""
    steps = []
    for _ in range(cell.num_steps):
        began = time.thread_time()
        report = engine.turn((), monotonic())
        seconds = time.thread_time() - began
        # Not the picture: thousands of records that stay would make the collector work, as in no server.
        steps.append(Step(seconds, None if report.picture is None else report.picture.duration_s))
        assert report.num_decode_tokens == cell.batch, "a step was no plain decode"
    return steps


def recorded(engine: Engine, cell: Cell) -> list[float]:
    """Take steps with somebody who watches; return the processor time that recording each for the next picture took."""
    engine.view = view = CountedView(engine.scheduler)
    turns(engine, cell)
    engine.turn([Watch(False)], monotonic())
    return view.steps_s


def num_since(turn: list[Step]) -> list[int]:
    """Return for each step of a turn how many steps came since the last one with a picture; many before the first."""
    found, number = [], len(turn) + NUM_AFTER
    for step in turn:
        number = 0 if step.picture_s is not None else number + 1
        found.append(number)
    return found
