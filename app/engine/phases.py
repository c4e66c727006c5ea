"""Phases of requests without deltas: queued, prefilling, paused, or without their KV blocks.

Only changes are examined: groups that were added or moved since the last time, those that prefill and, when any has
moved, the first ones that wait, because their places in the queue may be others.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from app.contract.events import EngineEvent, Phase, Progress
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, SWAPPED, WAITING

NUM_PLACES = 8  # so many of those that wait are told each change of their places; the others only the first place
_PHASES = {WAITING: Phase.QUEUED, PAUSED: Phase.PAUSED, PREEMPTED: Phase.PREEMPTED, SWAPPED: Phase.PREEMPTED}


class _Reported(NamedTuple):
    """The phase last reported for a group; `was_interrupted`: the group stopped in the middle of its answer."""

    phase: Phase
    done: int
    was_interrupted: bool
    ahead: int | None


class Phases:
    """Watches the queues of one engine. Engine thread only."""

    def __init__(self, queues: SequenceQueues) -> None:
        self._reported: dict[SequenceGroup, _Reported] = {}  # of groups that gain no tokens
        self._prefilling: dict[SequenceGroup, None] = {}  # those of them that prefill
        self._queues = queues
        self._changed = queues.report_changes()

    def take_changes(self) -> list[EngineEvent]:
        """Return the changes since the last call, at most one event per request."""
        if not self._changed and not self._prefilling:
            return []
        events = []
        waiting = dict.fromkeys(islice(self._queues.waiting, NUM_PLACES)) if self._changed else {}
        for group in {**self._changed, **self._prefilling, **waiting}:
            event = self._update(group)
            if event is not None:
                events.append(event)
        self._changed.clear()
        return events

    def _update(self, group: SequenceGroup) -> EngineEvent | None:
        self._prefilling.pop(group, None)
        reported = self._reported.pop(group, None)
        if group.status is FINISHED:
            return None
        leader = group.open[0]
        total, done = leader.num_prompt + len(leader.output_token_ids), leader.num_computed
        was_interrupted = reported is not None and reported.was_interrupted
        if group.status is not RUNNING:
            # A group whose readers want tokens is queued.
            phase = Phase.QUEUED if group.status is PAUSED and group.ready else _PHASES[group.status]
            was_interrupted = was_interrupted or group.status is not WAITING
        elif done < max(leader.num_prompt, total - 1):
            phase = Phase.PREFILL
            self._prefilling[group] = None
        else:
            return Progress(group.request.id, Phase.DECODE, done, total) if was_interrupted else None
        ahead = self._queues.num_ahead(group) if group.status is WAITING and group.ready else None
        self._reported[group] = new = _Reported(phase, done, was_interrupted, ahead)
        return Progress(group.request.id, phase, done, total, ahead) if new != reported else None
