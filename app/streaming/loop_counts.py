"""The event loop as the metrics show it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from app.contract.counts import Counts, gauge


@dataclass(slots=True)
class LoopCounts(Counts):
    """The event loop when the metrics are read."""

    num_tasks: int = gauge("quire_event_loop_tasks", "Tasks of the event loop; more and more of them are a leak.")


def loop_counts() -> LoopCounts:
    """Return the counts of the running loop, or those of none."""
    counts = LoopCounts()
    with suppress(RuntimeError):  # there is none where the metrics are only listed
        counts.num_tasks = len(asyncio.all_tasks())
    return counts
