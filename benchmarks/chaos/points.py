"""The points at which a server is killed: what its answers are doing then, as their readers see it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple


class Situation(StrEnum):
    """A state of a server that is killed."""

    QUEUED = "queued"  # most answers wait for a seat
    PREFILL = "prefill"  # the prompts are computed
    FIRST_TOKEN = "first token"
    MIDDLE = "middle"
    LAST_STEP = "last step"
    DRAIN = "in the drain"
    RESTORE = "in the restore"  # killed a second time, while the answers of the first process are restored
    DEGRADED = "degraded"  # the journal cannot be written


OPTIONS = {
    Situation.QUEUED: ("--max-num-seqs", "2"),
    Situation.PREFILL: ("--max-num-batched-tokens", "64", "--max-num-seqs", "32"),
}
"""Of the server, for a situation that would be over too soon without them."""


TWICE = (Situation.DRAIN, Situation.RESTORE, Situation.DEGRADED)
"""The situations that begin at one moment, before the server is killed at another one."""


class Point(NamedTuple):
    """When a server is killed.

    Attributes:
        num_accepted: so many answers have their ids.
        num_tokens: so many tokens were received, of all answers together.
        num_later: so many more, after what makes a situation of TWICE: the signal to drain, the restart, the full disk.
    """

    number: int
    situation: Situation
    num_accepted: int = 0
    num_tokens: int = 0
    num_later: int = 0


def points(count: int, seed: int, num_streams: int, num_tokens: int) -> Iterator[Point]:
    """Yield points of all situations in turn, for so many answers with so many tokens together."""
    rng = random.Random(seed)

    def part(least: float, most: float) -> int:
        return max(1, round(num_tokens * rng.uniform(least, most)))

    for number in range(1, count + 1):
        situation = [*Situation][(number - 1) % len(Situation)]
        point = Point(number, situation)
        if situation is Situation.QUEUED:
            yield point._replace(num_tokens=rng.randint(1, 2 * num_streams))
        elif situation is Situation.PREFILL:
            # Over quire.v1 an answer has its id at once, over HTTP with its first token.
            yield point._replace(num_accepted=rng.randint(1, max(1, num_streams // 4)))
        elif situation is Situation.FIRST_TOKEN:
            yield point._replace(num_tokens=rng.randint(1, num_streams))
        elif situation is Situation.MIDDLE:
            yield point._replace(num_tokens=part(0.1, 0.9))
        elif situation is Situation.LAST_STEP:
            yield point._replace(num_tokens=num_tokens - rng.randint(1, num_streams))
        elif situation is Situation.DRAIN:
            yield point._replace(num_tokens=part(0.1, 0.5), num_later=part(0, 0.3))
        elif situation is Situation.RESTORE:
            later = 0 if rng.random() < 0.5 else part(0, 0.1)  # at once, while it reads the journal or loads the model
            yield point._replace(num_tokens=part(0.1, 0.6), num_later=later)
        else:
            # Only answers that were begun before outlive the process.
            yield point._replace(num_accepted=num_streams, num_tokens=part(0.1, 0.4), num_later=part(0.05, 0.3))
