"""How many requests a scheduler has that are not finished."""

from __future__ import annotations

from dataclasses import astuple

from app.engine.schedule.scheduler import Scheduler


def num_open(scheduler: Scheduler) -> int:
    """The requests that are running, waiting or paused."""
    return sum(astuple(scheduler.counts))
