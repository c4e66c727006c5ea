"""Phases of requests without deltas: queued, prefilling, paused, or without their KV blocks.

Only changes are examined: groups that were added or moved since the last time, and those that prefill.
"""

from __future__ import annotations

from typing import NamedTuple

from app.contract.events import EngineEvent, Phase, Progress
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, SWAPPED, WAITING

_PHASES = {WAITING: Phase.QUEUED, PAUSED: Phase.PAUSED, PREEMPTED: Phase.PREEMPTED, SWAPPED: Phase.PREEMPTED}


class _Told(NamedTuple):
    """The phase that was last reported for a group; `is_away`: the group stopped in the middle of its answer."""

    phase: Phase
    done: int
    is_away: bool


class Phases:
    """Watches the queues of one engine. Engine thread only."""

    def __init__(self, lines: SequenceQueues) -> None:
        self._changed: dict[SequenceGroup, None] = {}
        self._told: dict[SequenceGroup, _Told] = {}  # of groups that gain no tokens
        self._reading: dict[SequenceGroup, None] = {}  # those of them that prefill
        lines.changed = self._changed

    def take(self) -> list[EngineEvent]:
        """Return what is new since the last call, at most one event for each request."""
        if not self._changed and not self._reading:
            return []
        events = []
        for group in {**self._changed, **self._reading}:
            event = self._look(group)
            if event is not None:
                events.append(event)
        self._changed.clear()
        return events

    def _look(self, group: SequenceGroup) -> EngineEvent | None:
        self._reading.pop(group, None)
        told = self._told.pop(group, None)
        if group.status is FINISHED:
            return None
        leader = group.open[0]
        total, done = leader.num_prompt + len(leader.output_token_ids), leader.num_computed
        is_away = told is not None and told.is_away
        if group.status is not RUNNING:
            # A group whose readers want tokens is queued.
            phase = Phase.QUEUED if group.status is PAUSED and group.ready else _PHASES[group.status]
            is_away = is_away or group.status is not WAITING
        elif done < max(leader.num_prompt, total - 1):
            phase = Phase.PREFILL
            self._reading[group] = None
        else:
            return Progress(group.request.id, Phase.DECODE, done, total) if is_away else None
        self._told[group] = now = _Told(phase, done, is_away)
        return Progress(group.request.id, phase, done, total) if now != told else None
