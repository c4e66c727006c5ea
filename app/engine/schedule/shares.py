"""Seats by account, under the policy `fair`: how many each account holds, and which gains or loses the next one.

The order of start tags alone is not enough: one account's long answers would hold every seat while the short request
of another account waits. So the next seat goes to the account that holds the fewest, and where all seats are taken, the
last groups of the accounts that hold the most lose theirs. Those groups are PAUSED: they keep their blocks, lose no
work, and wait for a seat like all others. An account that loses a seat never holds fewer than the one that gains it,
so a seat does not move back and forth.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter

from app.engine.schedule.group import SequenceGroup

_sort_key = attrgetter("sort_key")


class SeatShares:
    """The seats and the waiting groups of each account that has any. Engine thread only; pure."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}  # seats of RUNNING groups
        self._waiting: dict[str, list[SequenceGroup]] = {}  # ready ones without a seat, in the policy's order

    @property
    def next_group(self) -> SequenceGroup | None:
        """The first waiting group of the account that holds the fewest seats; None if no group waits."""
        return min((queue[0] for queue in self._waiting.values()), key=self.rank, default=None)

    @property
    def heaviest(self) -> str | None:
        """The account that holds the most seats; None while fewer than two hold any."""
        return max(self._held, key=self._held.__getitem__) if len(self._held) > 1 else None

    def rank(self, group: SequenceGroup) -> tuple[int, tuple[float, ...]]:
        """The present sort key of a group that waits for a seat."""
        return self._held.get(group.account, 0), group.sort_key

    def givers(self, group: SequenceGroup, num_seats: int, running: Iterable[SequenceGroup]) -> list[SequenceGroup]:
        """Return the groups that lose `num_seats` for `group`, the last of their accounts; [] if its own has its share.

        `running` are the RUNNING groups, in the policy's order.
        """
        held, queues = dict(self._held), defaultdict[str, list[SequenceGroup]](list)
        for one in running:
            if not one.is_protected:
                queues[one.account].append(one)
        wanted = held.get(group.account, 0) + group.num_seats
        found: list[SequenceGroup] = []
        while num_seats > 0:
            able = [name for name, queue in queues.items() if queue and held[name] - queue[-1].num_seats >= wanted]
            if not able:
                return []
            giver = queues[max(able, key=held.__getitem__)].pop()
            held[giver.account] -= giver.num_seats
            num_seats -= giver.num_seats
            found.append(giver)
        return found

    def wait(self, group: SequenceGroup) -> None:
        """Note that `group` waits for a seat."""
        insort(self._waiting.setdefault(group.account, []), group, key=_sort_key)

    def leave(self, group: SequenceGroup) -> None:
        """Note that `group` no longer waits for a seat."""
        queue = self._waiting[group.account]
        del queue[bisect_left(queue, group.sort_key, key=_sort_key)]
        if not queue:
            del self._waiting[group.account]

    def take(self, group: SequenceGroup, num_seats: int) -> None:
        """Note that `group` takes seats, or gives some back (`num_seats` below 0)."""
        left = self._held.get(group.account, 0) + num_seats
        if left:
            self._held[group.account] = left
        else:
            self._held.pop(group.account, None)

    def check_integrity(self, running: Iterable[SequenceGroup], waiting: Iterable[SequenceGroup]) -> None:
        """Compare the counts with the groups that have seats and those that wait for one.

        Raises:
            AssertionError: an account is miscounted, or a group is in no queue.
        """
        held: dict[str, int] = {}
        for group in running:
            held[group.account] = held.get(group.account, 0) + group.num_seats
        assert self._held == held, "the seats of an account are miscounted"
        queues: dict[str, list[SequenceGroup]] = {}
        for group in sorted(waiting, key=_sort_key):
            queues.setdefault(group.account, []).append(group)
        assert self._waiting == queues, "a group waits in another queue than its account's"
