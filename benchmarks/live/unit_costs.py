"""What a picture takes with nothing beside, of the engine thread and of the event loop, whoever watches.

That times how many there are is the work that watching adds. It does not depend on what else the machine does, and is
less than what it costs beside streams, where it also takes the processor's caches from them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.live.served import NUM_WATCHERS, ONE_THREAD, STALLED
from benchmarks.live.watching import watcher_process
from benchmarks.side import Program, with_checkout

ANSWER_S = 600.0  # on a busy machine
NUM_PICTURES = 20  # that are made; shown again and again
NUM_STEPS, NUM_SAMPLES = 20, 9
INTERVAL_S = 0.02  # between those that are shown: they are encoded meanwhile
POOLS, NUM_POOL_PICTURES, POOL_INTERVAL_S = (1_000, 10_000, 100_000), 5, 0.1
"""Pools by their KV blocks, whose pictures are larger, and take longer to encode."""


class UnitCosts(NamedTuple):
    """Processor time for a picture.

    Attributes:
        engine_ms: of the engine thread, with the records of the steps since the last one.
        loop_ms: of the event loop, by who watches.
        pool_loop_ms: of the event loop beside one watcher, by the number of KV blocks.
    """

    engine_ms: float
    loop_ms: Mapping[str, float]
    pool_loop_ms: Mapping[str, float]


def measure(folder: Path) -> UnitCosts:
    """Show pictures to each kind of watchers, one after the other. Blocks."""
    command = [sys.executable, "-m", "benchmarks.live.picture_process"]
    with Program(command, folder / "pictures.log", with_checkout() | ONE_THREAD, "pictures", ANSWER_S) as program:
        started = program.ask("start", num_pictures=NUM_PICTURES)
        with watcher_process(started["port"], folder) as watchers:
            quiet_ms = _step_ms(program, has_pictures=False)
            loop_ms: dict[str, float] = {}
            for name, num_watchers in NUM_WATCHERS.items():
                with watchers(num_watchers, name != STALLED)():
                    loop_ms[name] = _step_ms(program, has_pictures=True) - quiet_ms
            pool_quiet_ms = _step_ms(program, has_pictures=False, interval_s=POOL_INTERVAL_S)
            pool_loop_ms: dict[str, float] = {}
            for num_blocks in POOLS:
                program.ask("replace", num_blocks=num_blocks, num_pictures=NUM_POOL_PICTURES)
                with watchers(1, True)():
                    step_ms = _step_ms(program, has_pictures=True, interval_s=POOL_INTERVAL_S)
                pool_loop_ms[f"{num_blocks:,}"] = step_ms - pool_quiet_ms
    return UnitCosts(started["engine_ms"], loop_ms, pool_loop_ms)


def _step_ms(program: Program, *, has_pictures: bool, interval_s: float = INTERVAL_S) -> float:
    """Return the event loop's milliseconds for a step; the first steps fill the buffers of one that reads nothing."""
    shown = {"num_steps": NUM_STEPS, "has_pictures": has_pictures, "interval_s": interval_s}
    asked = (program.ask("show", **shown) for _ in range(NUM_SAMPLES))
    found: list[float] = [answer["loop_ms"] for answer in asked]
    return statistics.median(found[1:])
