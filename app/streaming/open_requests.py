"""The requests that the engine has not ended, by account, and whether one more may come.

Alone an account may fill the queue. While others want tokens too it may hold half of it, and where the queue is full,
who holds less than an equal share of it is let in all the same: so what may wait in all is bounded too, by `max_queue`
times the harmonic number of the accounts. An account of whose streams too many wait for their readers gets no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.contract.engine_status import EngineStats
from app.contract.errors import Overloaded, RateLimitExceeded
from app.contract.ports import EventSink
from app.contract.requests import EngineRequest


@dataclass(slots=True)
class OpenRequest:
    """A request that the engine has not ended, where its events go, and whether it is paused."""

    request: EngineRequest
    sink: EventSink
    is_paused: bool = False

    @property
    def num_sequences(self) -> int:
        """How many sequences it has, as far as the loop knows."""
        params = self.request.params
        return params.num_sequences if params.is_ranked else self.sink.num_open_choices


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many requests may wait, how many sequences run, and how many streams of an account may be paused."""

    max_queue: int
    max_num_seqs: int
    max_paused: int


class OpenRequests(dict[str, OpenRequest]):
    """What is open, by the requests' ids. Loop only."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        self._bounds = bounds

    def has_any(self, account: str) -> bool:
        """Whether any request of `account` is open."""
        return any(one.request.account == account for one in self.values())

    def check(self, account: str, stats: EngineStats) -> None:
        """Let one more request of `account` come; `stats` are the engine's last.

        Raises:
            RateLimitExceeded: too many streams of the account wait for their readers.
            Overloaded: the account holds as much of the queue as it may.
        """
        bounds = self._bounds
        ready = [one for one in self.values() if not one.is_paused]
        num_paused = sum(one.is_paused and one.request.account == account for one in self.values())
        if num_paused >= bounds.max_paused:
            raise RateLimitExceeded(
                f"{num_paused} streams of this account are paused because nobody reads them; {bounds.max_paused} may "
                "be. Read or end some, then try again."
            )
        num_waiting = self._num_waiting(ready, stats)
        counts: dict[str, int] = {account: 0}
        for one in ready:
            if not one.sink.has_begun:
                counts[one.request.account] = counts.get(one.request.account, 0) + 1
        is_alone = all(one.request.account == account for one in ready)
        num_own = num_waiting if is_alone else min(counts[account], num_waiting)
        if not is_alone and num_own >= max(1, bounds.max_queue // 2):
            raise Overloaded(
                f"{counts[account]} requests of this account are waiting; while others have requests too, it may have "
                f"half of the queue of {bounds.max_queue}. Try again later."
            )
        if self and num_waiting >= bounds.max_queue and num_own >= bounds.max_queue // len(counts):
            raise Overloaded(f"The queue is full: {bounds.max_queue} requests are waiting. Try again later.")

    def _num_waiting(self, ready: list[OpenRequest], stats: EngineStats) -> float:
        """How many of the `ready` requests, whose readers want tokens, have no seat.

        The last report is a step old, but every open request is counted here. So all that do not run are taken to
        wait, except that, while the engine reports none waiting, its free seats will be taken first: each sequence
        takes one, so there is room for fewer requests of many sequences.
        """
        if stats.num_waiting:
            return len(ready) - stats.num_running
        num_sequences = sum(one.num_sequences for one in ready)
        return len(ready) - self._bounds.max_num_seqs * len(ready) / max(num_sequences, 1)
