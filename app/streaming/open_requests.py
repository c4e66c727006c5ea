"""The open requests of the engine, and the limits of further ones.

A single account may fill the queue. While other accounts have requests too, an account may have half of the queue; if
the queue is full, an account with less than an equal share is still admitted. So at most `max_queue` times the harmonic
number of the accounts wait. An account with too many paused streams gets no more.

The requests of one body are admitted together or not at all. Each of them counts, so they need room for all; but while
the queue is not full, an account without waiting requests is admitted with a body of any size. Otherwise a large body
would be rejected again and again by a queue that is smaller, or half of which belongs to others. The queue then has at
most one body more than it may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.contract.counts import Counts, MetricFamily, shown_as
from app.contract.engine_status import EngineStats
from app.contract.errors import Overloaded, RateLimitExceeded
from app.contract.ports import EventSink
from app.contract.requests import EngineRequest

QUEUE_FULL, PAUSED, BROWNOUT = "max_num_queued_reqs", "max_paused_per_account", "brownout"


@dataclass(slots=True)
class AdmissionCounts(Counts):
    """Bodies that were rejected before the engine got their requests."""

    rejections: dict[str, float] = shown_as(
        MetricFamily(
            "vllm:admission_rejections",
            "counter",
            "Bodies rejected because of load, by reason: max_num_queued_reqs (`--max-queue`, under vLLM's name), "
            "max_paused_per_account, brownout.",
            ("reason",),
            of_engine=False,
        ),
        dict.fromkeys((QUEUE_FULL, PAUSED, BROWNOUT), 0),
    )


@dataclass(slots=True)
class OpenRequest:
    """A request that has not ended in the engine, the sink of its events, and whether it is paused."""

    request: EngineRequest
    sink: EventSink
    is_paused: bool = False

    @property
    def num_sequences(self) -> int:
        """The number of open sequences, as far as the loop knows it."""
        params = self.request.params
        return params.num_sequences if params.is_ranked else self.sink.num_open_choices


class OpenRequests(dict[str, OpenRequest]):
    """The open requests by their ids. Loop only.

    At most `max_queue` requests wait, `max_num_seqs` sequences run, and `max_paused` streams of an account are paused.

    Attributes:
        counts: the bodies that were rejected.
    """

    def __init__(self, max_queue: int, max_num_seqs: int, max_paused: int) -> None:
        super().__init__()
        self.counts = AdmissionCounts()
        self._max_queue = max_queue
        self._max_num_seqs = max_num_seqs
        self._max_paused = max_paused

    def check(self, account: str, further: Sequence[EngineRequest], stats: EngineStats) -> None:
        """Reject one more request of an account, and the `further` ones of its body, if a limit is reached. O(open).

        `stats` are the engine's last.

        Raises:
            RateLimitExceeded: too many streams of the account are paused.
            Overloaded: the account has as much of the queue as it may have.
        """
        ready = [one for one in self.values() if not one.is_paused]
        num_paused = sum(one.is_paused and one.request.account == account for one in self.values())
        if num_paused >= self._max_paused:
            self.counts.rejections[PAUSED] += 1
            raise RateLimitExceeded(
                f"{num_paused} streams of this account are paused because they are not read; at most "
                f"{self._max_paused} may be. Read or end some, then try again."
            )
        counts: dict[str, int] = {account: 0}
        for one in ready:
            if not one.sink.has_begun:
                counts[one.request.account] = counts.get(one.request.account, 0) + 1
        num_sequences = sum(one.num_sequences for one in ready)
        num_waiting = self._num_waiting(len(ready), num_sequences, stats)
        num_own = counts[account]
        if num_own or num_waiting >= self._max_queue:
            num_sequences += sum(one.params.num_sequences for one in further)
            num_waiting = self._num_waiting(len(ready) + len(further), num_sequences, stats)
            num_own += len(further)
        is_alone = all(one.request.account == account for one in ready)
        num_own_waiting = num_waiting if is_alone else min(num_own, num_waiting)
        full = f"is full: {self._max_queue} requests are waiting."
        if further:
            full = f"has no room for {1 + len(further)} more requests; at most {self._max_queue} may wait."
        if not is_alone and num_own_waiting >= max(1, self._max_queue // 2):
            self.counts.rejections[QUEUE_FULL] += 1
            more = f", and {1 + len(further)} more came in one body" if further else ""
            raise Overloaded(
                f"{counts[account]} requests of this account are waiting{more}; while others have requests too, it may "
                f"have half of the queue of {self._max_queue}. Try again later."
            )
        if self and num_waiting >= self._max_queue and num_own_waiting >= self._max_queue // len(counts):
            self.counts.rejections[QUEUE_FULL] += 1
            raise Overloaded(f"The queue {full} Try again later.")

    def has_share(self, account: str) -> bool:
        """Return whether an account has open requests, and of those that wait at least an equal share. O(open)."""
        accounts = {one.request.account for one in self.values()}
        waiting = [one.request.account for one in self.values() if not one.is_paused and not one.sink.has_begun]
        return account in accounts and waiting.count(account) * len(accounts) >= len(waiting)

    def _num_waiting(self, num_ready: int, num_sequences: int, stats: EngineStats) -> float:
        """Return how many of `num_ready` requests (not paused), with `num_sequences` in all, have no seat.

        The engine's stats are a step old, but all open requests are counted. So each request that does not run is
        assumed to wait. If the engine reports no waiting requests, its free seats are assumed to be taken first: a
        request takes a seat for each of its sequences.
        """
        if stats.queues.num_waiting:
            return num_ready - stats.queues.num_running
        return num_ready - self._max_num_seqs * num_ready / max(num_sequences, 1)
