"""The planner: which sequences get how many tokens of a step.

There is no prefill phase and no decode phase, only sequences with tokens to compute. The rules, in order:

1. Resumed groups run again while there are seats (see `group_starts`). Under `fair` the account that makes steps long
   sits some steps out (see `shares`).
2. Running sequences with one token to compute get it, in the policy's order (see `decodes`).
3. Chunks of prompts fill what decodes leave of the step's budget, and waiting groups start among them. The first prompt
   in the policy's order has its turn in every second step, so no prompt takes more than twice the time that the policy
   alone would give it. The other steps are for the shortest prompts, which need not wait for a long one to end. Any
   other prompt gets a small chunk now and then, so every prompt advances within a known number of steps.

A step without prompts may then compute draft tokens (see `speculation`).
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from app.engine.schedule.decodes import Decodes
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.group_starts import GroupStarts
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.late_sequences import LateSequences
from app.engine.schedule.preemption import Preemption
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.sequence import RUNNING, Sequence
from app.engine.schedule.step_budget import MIN_CHUNK, StepBudget
from app.engine.schedule.step_builder import StepPlanBuilder

# A prompt that has waited for so many steps gets a small chunk; at most one such prompt per step.
PATIENCE = 16

_num_left, _last_step = attrgetter("num_left"), attrgetter("last_step")


class _Step(NamedTuple):
    """A step's number, the account that sat it out, and whether it was the turn of the policy's first prompt."""

    number: int
    resting: str | None
    was_first_turn: bool


class Planner:
    """Fills steps. Engine thread only."""

    def __init__(
        self,
        queues: SequenceQueues,
        tables: BlockTables,
        preemption: Preemption,
        budget: StepBudget,
        late: LateSequences | None = None,
    ) -> None:
        self.starts = GroupStarts(queues, tables, preemption, budget, late)
        self._decodes = Decodes(queues, tables, preemption)
        self._preemption = preemption
        self._budget = budget
        self._last = self._last_full = _Step(0, None, False)  # full: no account sat it out

    def fill(self, builder: StepPlanBuilder) -> None:
        """Put into an empty `builder` what the step is to compute."""
        may_start = self.starts.resume(builder.step)
        self.starts.shrink_to_budget()
        if self._budget.rests is not None and self._preemption.allowed is None:
            builder.resting = self._budget.rests.choose()
        prefilling = self._decodes.plan_all(builder)
        if builder.resting is not None and not builder.num_tokens:
            builder.resting = None  # no other account decodes, and prompts have their share of every step
            prefilling = self._decodes.plan_all(builder)
        self._plan_prompts(prefilling, builder, may_start)

    def _plan_prompts(self, prefilling: list[Sequence], builder: StepPlanBuilder, may_start: bool) -> None:
        """Share the rest of the step among `prefilling`, in the policy's order, and the groups that may start."""
        is_for_prompts = not self._budget.is_for_decodes(builder)
        is_first_turn = is_for_prompts and bool(prefilling) and self._is_first_turn(prefilling[0])
        self._last = _Step(builder.step, builder.resting, is_first_turn)
        if builder.resting is None:
            self._last_full = self._last
        if is_for_prompts:
            self._add_prompts(prefilling, builder, may_start, is_first_turn)

    def _is_first_turn(self, first: Sequence) -> bool:
        """Return whether `first` neither advanced nor had its turn in its account's last step."""
        sat_out = self._last.resting is not None and self._last.resting == first.group.account
        last = self._last_full if sat_out else self._last
        return first.last_step < last.number and not last.was_first_turn

    def _add_prompts(
        self, prefilling: list[Sequence], builder: StepPlanBuilder, may_start: bool, is_first_turn: bool
    ) -> None:
        if prefilling:
            first = prefilling[0]
            self._add_overdue(prefilling, builder, may_start)
            if is_first_turn:
                self._add_chunk(first, builder, at_least=1)
            shortest_first = sorted(prefilling, key=_num_left)
            for sequence in shortest_first:
                if may_start:
                    self._start_waiting(builder, sequence.num_left)
                if sequence is first and builder.has_chunks and self._budget.has_target:
                    return  # the rest of the step is the shorter prompt's, which is done the sooner
                self._add_chunk(sequence, builder, at_least=int(sequence is shortest_first[0]))
        if may_start:
            self._start_waiting(builder)

    def _add_overdue(self, prefilling: list[Sequence], builder: StepPlanBuilder, may_start: bool) -> None:
        """Add a small chunk of the next group to start and of the longest-waiting prompt, if they are overdue."""
        group = self.starts.next_group()
        if group is not None:
            group.next_since = group.next_since or builder.step
            if may_start and builder.step - group.next_since > PATIENCE:
                self._start(group, builder, most=_small(builder))
        longest = min(prefilling, key=_last_step)
        if builder.step - longest.last_step > PATIENCE:
            self._add_chunk(longest, builder, at_least=1, most=_small(builder))

    def _start_waiting(self, builder: StepPlanBuilder, shorter_than: int | None = None) -> None:
        """Start groups while there is room, up to the first with at least `shorter_than` tokens to compute."""
        while builder.num_left:
            group = self.starts.next_group()
            if group is None or (shorter_than is not None and group.open[0].num_left >= shorter_than):
                return
            if not self._start(group, builder):
                return

    def _start(self, group: SequenceGroup, builder: StepPlanBuilder, most: int | None = None) -> bool:
        """Start `group`, with at most `most` tokens of each prompt; False if the group cannot start now."""
        if not self.starts.admit(group, builder):
            return False
        for sequence in self._decodes.plan(group, builder):
            self._add_chunk(sequence, builder, most=most)
        return True

    def _add_chunk(
        self, sequence: Sequence, builder: StepPlanBuilder, *, at_least: int = 0, most: int | None = None
    ) -> None:
        """Add as many of a sequence's tokens as the step's budget allows; a folded group's only to the prompt's end.

        The first chunk of a step has at least `MIN_CHUNK` tokens. A sequence that is in the step already gets none, nor
        does a prompt that is scored when the step scores as many tokens as it may.
        """
        group, start, num_left = sequence.group, sequence.num_scheduled, sequence.num_left
        if group.status is not RUNNING or sequence.last_step == builder.step:
            return  # it became a victim, possibly for a sequence of its own group
        if group.is_folded and start < group.num_prompt:
            num_left = min(num_left, group.num_prompt - start)
        if most is not None:
            num_left = min(num_left, most)
        if sequence.num_to_score:
            num_without = max(0, sequence.num_scored - start)  # scored before a preemption
            num_left = min(num_left, num_without + builder.num_left_to_score)
            if not num_left:
                return
        number = self._budget.chunk_size(num_left, start, builder, at_least if builder.has_chunks else MIN_CHUNK)
        if number > 0:
            self._decodes.add(sequence, number, builder)


def _small(builder: StepPlanBuilder) -> int:
    """Return the tokens of a small chunk, which leaves some for the prompt whose turn it is."""
    return max(1, min(MIN_CHUNK, builder.num_left // 4))
