"""Seats and time by account, under the policy `fair`: which account gains or loses a seat, and which sits steps out.

The order of start tags alone is not enough: one account's long answers would hold every seat while the short request
of another account waits. So the next seat goes to the account that holds the fewest, and where all seats are taken, the
last groups of the accounts that hold the most lose theirs. Those groups are PAUSED: they keep their blocks, lose no
work, and wait for a seat like all others. An account that loses a seat never holds fewer than the one that gains it,
so a seat does not move back and forth.

Groups of several choices may hold all seats, each the only one of its account: none can lose a part of them. Then an
account without a seat takes turns with them. The groups that have had their seats for the longest time, and for at
least `TURN_STEPS` steps, give way as a whole, as many as it takes. They wait behind all that gave way before, and
behind accounts that have had fewer tokens, and nobody gives way to them for `TURN_STEPS` steps. So seats go round and
not back and forth, and a group waits for at most one turn of each other group. An answer of one choice never gives way:
an account cannot have less than a seat.

So a group that wants more seats than answers of one choice leave has no turn until some of these end. Groups of several
choices take turns past it. New answers of one choice wait behind it, or it might never start; they pass a group only
into seats that it will not need (see `Passing`).

Beside another account's full batch a single answer would get its tokens at that batch's pace. So after a step with the
account that holds the most seats, that account rests: the others take steps without that account until these have taken
as long. Each side gets half of the time, and the short steps give many tokens. Where steps without the account are not
much shorter, because reading the weights is most of a step, a rest does not help and is not tried again for a while.

Rests are for decodes. Prompts have their share of every step (see `step_budget`), so no account rests where the others
have only prompts; and in the steps without the account the time of prompts is limited, so that these steps stay short.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter

from app.engine.schedule.group import SequenceGroup

# Steps that a group of several choices has its seats before it gives way, and waits before another gives way to it.
TURN_STEPS = 32
# A step without the account must be at most this share of one with it.
MAX_STEP_SHARE = 1 / 3
# With prompts at most this share: predictions may be wrong by a third.
PROMPT_STEP_SHARE = 1 / 4
# Steps that an account sits out in a row at most.
MAX_RESTS = 32
# Steps in a row over MAX_STEP_SHARE after which rests are given up: a few may only have waited for a core or for the
# interpreter lock, which the loop needs for the tokens of a long step.
MAX_LONG_STEPS = 8
# Steps until a rest is tried again after rests did not help.
RETRY_STEPS = 512

_sort_key, _turn_since = attrgetter("sort_key"), attrgetter("turn_since")


class SeatShares:
    """The seats and the waiting groups of each account that has any. Engine thread only; pure."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()  # seats of RUNNING groups
        self._waiting: dict[str, list[SequenceGroup]] = {}  # ready ones without a seat, in the policy's order

    @property
    def next_groups(self) -> list[SequenceGroup]:
        """The first waiting group of each account, that of the account with the fewest seats first."""
        return sorted((queue[0] for queue in self._waiting.values()), key=self.rank)

    def first_of_accounts(self, groups: Iterable[SequenceGroup]) -> list[SequenceGroup]:
        """Return the first of each account among waiting `groups`, those of the policy's order, by rank."""
        first: dict[str, SequenceGroup] = {}
        for group in groups:
            first.setdefault(group.account, group)
        return sorted(first.values(), key=self.rank)

    @property
    def heaviest(self) -> str | None:
        """The account that holds the most seats; None while fewer than two hold any."""
        return max(self._held, key=self._held.__getitem__) if len(self._held) > 1 else None

    def holds_seats(self, account: str) -> bool:
        """Return whether a group of `account` has seats."""
        return account in self._held

    def rank(self, group: SequenceGroup) -> tuple[int, float, int]:
        """Return the present sort key of a group that waits for a seat."""
        first = self._waiting[group.account][0]  # no group comes before those of its account that were added earlier
        return self._held.get(group.account, 0), max(group.sort_key[0], first.place), group.id

    def losers(self, group: SequenceGroup, num_seats: int, running: Iterable[SequenceGroup]) -> list[SequenceGroup]:
        """Return the groups that lose `num_seats` to `group`; [] if its account would then hold more than theirs.

        They are the last ones of their accounts. `running` are the RUNNING groups, in the policy's order.
        """
        held, queues = self._held.copy(), defaultdict[str, list[SequenceGroup]](list)
        for other in running:
            if not other.is_protected:
                queues[other.account].append(other)
        fewest = held[group.account] + group.num_seats
        losers: list[SequenceGroup] = []
        while num_seats > 0:
            accounts = [name for name, queue in queues.items() if queue and held[name] - queue[-1].num_seats >= fewest]
            if not accounts:
                return []
            loser = queues[max(accounts, key=held.__getitem__)].pop()
            held[loser.account] -= loser.num_seats
            num_seats -= loser.num_seats
            losers.append(loser)
        return losers

    def turns_to_end(
        self, group: SequenceGroup, num_seats: int, running: Iterable[SequenceGroup], step: int
    ) -> list[SequenceGroup]:
        """Return the groups of several choices whose turns end, so that `group` gets `num_seats` from them.

        They are those that have had their seats the longest. [] if the account of `group` holds a seat, or if it is too
        early for a turn of `group` or of enough others.
        """
        has_just_run = group.last_step > 0 and step - group.last_step < TURN_STEPS
        if has_just_run or group.account in self._held:
            return []
        ended = [
            other
            for other in running
            if other.num_seats > 1 and step - other.turn_since >= TURN_STEPS and not other.is_protected
        ]
        losers: list[SequenceGroup] = []
        for other in sorted(ended, key=_turn_since):
            losers.append(other)
            num_seats -= other.num_seats
            if num_seats <= 0:
                return losers
        return []

    def give_way(self, losers: Iterable[SequenceGroup], group: SequenceGroup) -> None:
        """Put `losers`, which are to wait, behind `group`, all that gave way before, and accounts with fewer tokens."""
        last = max(self.rank(group)[1], *(queue[0].place for queue in self._waiting.values()))
        for loser in losers:
            last = loser.place = max(loser.sort_key[0] + loser.num_scheduled, last + 1.0)

    def add_waiting(self, group: SequenceGroup) -> None:
        """Note that `group` waits for a seat."""
        insort(self._waiting.setdefault(group.account, []), group, key=_sort_key)

    def remove_waiting(self, group: SequenceGroup) -> None:
        """Note that `group` no longer waits for a seat."""
        queue = self._waiting[group.account]
        del queue[bisect_left(queue, group.sort_key, key=_sort_key)]
        if not queue:
            del self._waiting[group.account]

    def add_seats(self, account: str, num_seats: int) -> None:
        """Note that groups of `account` take seats, or release some (`num_seats` below 0)."""
        self._held[account] += num_seats
        if not self._held[account]:
            del self._held[account]

    def check_integrity(self, running: Iterable[SequenceGroup], waiting: Iterable[SequenceGroup]) -> None:
        """Assert that the counts fit the groups that have seats and those that wait for one."""
        held: Counter[str] = Counter()
        for group in running:
            held[group.account] += group.num_seats
        assert self._held == held, "the seats of an account are miscounted"
        queues = defaultdict[str, list[SequenceGroup]](list)
        for group in sorted(waiting, key=_sort_key):
            queues[group.account].append(group)
        assert self._waiting == queues, "a group waits in another queue than its account's"


class Passing:
    """Which groups may pass those that wait for seats; for one step. Engine thread only; pure.

    A group that takes turns waits for those of others, so no group of several choices passes it; but one passes a group
    that wants more seats than the answers of one choice leave, since that one has no turn until some of these end. An
    answer of one choice keeps its seat, so it passes only if those that wait will have theirs nevertheless.
    """

    def __init__(self, shares: SeatShares, running: Sequence[SequenceGroup], num_free: int) -> None:
        sizes = [group.num_seats for group in running]
        self._shares = shares
        self._num_of_turns = num_free + sum(size for size in sizes if size > 1)
        self._num_soon = num_free + max(sizes, default=0)  # when the largest group ends
        self._max_one, self._max_several = num_free, self._num_of_turns

    @property
    def is_over(self) -> bool:
        """Whether no group may."""
        return self._max_one < 1 and self._max_several < 2

    def allows(self, group: SequenceGroup) -> bool:
        """Return whether `group` may have seats before those that wait for theirs."""
        num_seats = group.num_seats
        return num_seats <= (self._max_one if num_seats == 1 else self._max_several)

    def add(self, group: SequenceGroup, *, has_blocks: bool) -> None:
        """Note that `group` waits for seats; `has_blocks` if it waits for nothing else."""
        if self._shares.holds_seats(group.account):  # it takes no turns
            self._max_one = min(self._max_one, self._num_soon - group.num_seats)
            self._max_several = min(self._max_several, self._num_soon - group.num_seats)
            return
        self._max_one = min(self._max_one, self._num_of_turns - group.num_seats)
        if has_blocks and group.num_seats <= self._num_of_turns:
            self._max_several = 0


class Rests:
    """Chooses the account that sits the next step out. Engine thread only; pure."""

    def __init__(self, shares: SeatShares) -> None:
        self._shares = shares
        self._account: str | None = None  # part of the last long step, with the most seats then
        self._step_s = 0.0
        self._left_s = 0.0  # of its rest
        self._num_long = 0  # steps in a row without the account that were hardly shorter
        self._num_until_retry = 0  # steps

    @property
    def limit_s(self) -> float:
        """The seconds that a step with prompts may take while an account rests."""
        return PROMPT_STEP_SHARE * self._step_s

    def choose(self) -> str | None:
        """Return the account that rests, or None."""
        return self._account if self._left_s > 0.0 and self._account == self._shares.heaviest else None

    def observe(self, seconds: float, resting: str | None) -> None:
        """Learn how long a step took, and which account rested."""
        if resting is None:
            self._num_until_retry = max(0, self._num_until_retry - 1)
            self._account = self._shares.heaviest
            self._step_s = self._left_s = 0.0 if self._num_until_retry or self._account is None else seconds
            return
        self._left_s -= max(seconds, self._step_s / MAX_RESTS)
        self._num_long = self._num_long + 1 if seconds > MAX_STEP_SHARE * self._step_s else 0
        if self._num_long == MAX_LONG_STEPS:
            self._left_s, self._num_until_retry, self._num_long = 0.0, RETRY_STEPS, 0
