"""S14: the number of planned steps that a prompt waits is limited, under every policy.

Under `fair` the next group to start is the first of the account with the fewest seats, and the account with the most
seats may rest for some steps while other accounts decode. Such steps do not count for its prompts; the number of
consecutive rests is limited.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.planner import PATIENCE
from app.engine.schedule.sequence import PAUSED, PREEMPTED, RUNNING, SWAPPED, WAITING, Sequence
from app.engine.schedule.shares import MAX_RESTS
from app.engine.schedule.step_plan import StepPlan
from tests.simulation.seats import held_seats

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

# Consecutive steps with chunks of longer prompts only: every second step is for the policy's first prompt, and one step
# for decodes alone may come between.
MAX_PASSED = 2
# Steps until the next group starts, if it only waits for the time of other prompts.
MAX_NEXT = PATIENCE + 4


class PromptWaits:
    """Counts the steps that each running prompt waits for its next chunk, and the next group for its start."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        # If all running prompts are overdue, each of the others may be scheduled first once.
        self._max_waited = PATIENCE + simulation.scenario.limits.max_num_seqs + 4
        self._waited: Counter[int] = Counter()
        self._passed: Counter[int] = Counter()
        self._left: dict[int, int] = {}  # by sequence: prompt tokens left before the step
        self._running: list[Sequence] = []
        self._next: SequenceGroup | None = None
        self._num_next: Counter[int] = Counter()  # by group; other groups may be next in between
        self._is_fair = simulation.scenario.policy == "fair"
        # Some rests may be planned before the first one is measured, and the rest of a rest is rounded up.
        self._max_rests = MAX_RESTS + 1 + simulation.scenario.limits.run_ahead
        self._num_rests: Counter[str] = Counter()  # consecutive, by account

    def before_schedule(self) -> None:
        """Record the tokens left of each prompt, and the next group to start."""
        groups = [client.group for client in self._simulation.clients.values()]
        self._running = [one for group in groups if group.status is RUNNING for one in group.active if one.num_left > 1]
        self._left = {one.id: one.num_left for group in groups for one in group.open if one.num_left > 1}
        self._next = self._next_to_start(groups)

    def after_schedule(self, plan: StepPlan | None) -> None:
        """Count the waits after a step; while a culprit is searched, nothing is guaranteed."""
        if self._simulation.scheduler.preemption.allowed is not None:
            self._waited.clear()
            self._passed.clear()
            self._num_rests.clear()
            self._num_next.clear()
            self._next = None
        elif plan is not None:
            resting = self._resting_account(plan)
            self._check_rests(resting)
            self._check_prompts(plan, resting)
            self._check_next(resting)

    def _resting_account(self, plan: StepPlan) -> str | None:
        """The account with the most seats, if the step has none of its tokens and decodes other accounts."""
        groups = [client.group for client in self._simulation.clients.values()] if self._is_fair else []
        accounts = {one.id: group.account for group in groups for one in group.open}
        taking_part = {accounts.get(chunk.sequence_id) for chunk in plan.chunks}
        decoding = {accounts.get(chunk.sequence_id) for chunk in plan.chunks if chunk.sequence_id not in self._left}
        held = held_seats(groups)
        most = max(held.values(), default=0)
        absent = [account for account, number in held.items() if number == most and account not in taking_part]
        return absent[0] if absent and decoding else None

    def _check_rests(self, resting: str | None) -> None:
        """S14: the number of consecutive rests of an account is limited."""
        self._num_rests = Counter() if resting is None else Counter({resting: self._num_rests[resting] + 1})
        for account, number in self._num_rests.items():
            assert number <= self._max_rests, f"account {account!r} rests for {number} consecutive steps"

    def _check_prompts(self, plan: StepPlan, resting: str | None) -> None:
        """S14: a running prompt gets a chunk within a number of steps, and longer prompts do not pass it repeatedly."""
        got = {chunk.sequence_id for chunk in plan.chunks}
        lengths = [self._left[sequence_id] for sequence_id in got if sequence_id in self._left]
        waiting = [one for one in self._running if one.group.status is RUNNING and one.id not in got]
        self._waited = Counter({one.id: self._waited[one.id] + self._counts(one, resting) for one in waiting})
        if self._next is not None and self._next.status is WAITING and self._next.num_prompt > 1:
            waiting.append(self._next.open[0])
        if lengths:
            passed = [one for one in waiting if self._left[one.id] < min(lengths) or not self._counts(one, resting)]
            self._passed = Counter({one.id: self._passed[one.id] + self._counts(one, resting) for one in passed})
        for one in waiting:
            name = one.request.id
            assert self._passed[one.id] <= MAX_PASSED, f"{name}: longer prompts pass it repeatedly"
            assert self._waited[one.id] <= self._max_waited, f"{name}: its prompt makes no progress"

    def _counts(self, sequence: Sequence, resting: str | None) -> bool:
        """Whether the account of the sequence does not rest in the step."""
        return resting is None or sequence.group.account != resting

    def _check_next(self, resting: str | None) -> None:
        """S14: if seats and blocks suffice for the next group, it starts within a number of steps."""
        if self._next is not None and self._next.status is WAITING:
            self._num_next[self._next.id] += self._counts(self._next.open[0], resting)
            assert self._num_next[self._next.id] <= MAX_NEXT, (
                f"{self._next.request.id}: seats and blocks suffice, and it does not start"
            )

    def _next_to_start(self, groups: list[SequenceGroup]) -> SequenceGroup | None:
        """The first group that has not started, if seats and blocks certainly suffice for it."""
        outside = [group for group in groups if group.ready and group.status in (WAITING, PREEMPTED, SWAPPED)]
        if not outside or any(group.ready and group.status is PAUSED for group in groups):
            return None
        held = held_seats(groups) if self._is_fair else Counter[str]()
        first = min(outside, key=lambda group: (held[group.account], group.sort_key))
        return first if first.status is WAITING and self._has_room(first, groups) else None

    def _has_room(self, group: SequenceGroup, groups: list[SequenceGroup]) -> bool:
        """Whether seats and blocks suffice, whatever the running groups need in this step."""
        scheduler, limits = self._simulation.scheduler, self._simulation.scenario.limits
        num_seats = sum(one.num_seats for one in groups if one.status is RUNNING)
        num_blocks = -(-group.num_prompt // limits.block_size) + group.num_seats + num_seats + 1
        watermark = -(-limits.num_blocks // 100)
        return (
            self._simulation.connector is None
            and num_seats + group.num_seats <= min(limits.max_num_seqs, scheduler.budget.tokens)
            and 2 * num_seats + num_blocks + watermark <= scheduler.tables.pool.num_free
        )
