"""Prompt turns: whose prompt goes into a step, and how much of it.

Chunks fill what decodes leave of the step's budget. The policy's first has its turn in every second step, so nobody's
prompt takes more than twice the time that the policy would give it. The other steps are for the shortest, who need not
wait for a long one to end. Who neither is gets a small chunk now and then; so every prompt gets on in a number of steps
that is known.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from app.engine.schedule.chunk_sizes import ChunkSizes
from app.engine.schedule.decodes import Decodes
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.group_starts import Admission
from app.engine.schedule.sequence import RUNNING, Sequence
from app.engine.schedule.step_budget import MIN_CHUNK, StepBudget
from app.engine.schedule.step_builder import StepDraft

# A prompt that has waited for so many steps gets a small chunk, a step for each such prompt.
PATIENCE = 16

_num_left, _last_step = attrgetter("num_left"), attrgetter("last_step")


class _Step(NamedTuple):
    """The number of a step, which account sat it out, and whether the policy's first had its turn in it."""

    number: int
    resting: str | None
    was_policys: bool


class PromptTurns:
    """Puts chunks of prompts into steps. Engine thread only."""

    def __init__(self, admission: Admission, decodes: Decodes, sizes: ChunkSizes, budget: StepBudget) -> None:
        self._admission = admission
        self._decodes = decodes
        self._sizes = sizes
        self._budget = budget
        self._last = self._last_joint = _Step(0, None, False)
        self._num_joint = 0  # steps that nobody sat out

    def plan(self, prefilling: list[Sequence], draft: StepDraft, may_start: bool) -> None:
        """Share what is left of the step among `prefilling`, in the policy's order, and those who may start."""
        is_for_prompts = not self._is_for_decodes(draft)
        is_policys = is_for_prompts and bool(prefilling) and self._is_policys_turn(prefilling[0])
        self._last = _Step(draft.step, draft.resting, is_policys)
        if draft.resting is None:
            self._last_joint = self._last
        if is_for_prompts:
            self._share(prefilling, draft, may_start, is_policys)

    def _is_for_decodes(self, draft: StepDraft) -> bool:
        """Whether the step is to have no prompts. Those that somebody sits out say too little about decodes."""
        if draft.resting is not None:
            return False
        self._num_joint += 1
        return draft.has_decodes and self._budget.is_for_decodes(self._num_joint)

    def _is_policys_turn(self, first: Sequence) -> bool:
        """Whether the policy's first neither got on nor had its turn in the last step that it did not sit out."""
        sat_out = self._last.resting is not None and self._last.resting == first.group.account
        last = self._last_joint if sat_out else self._last
        return first.last_step < last.number and not last.was_policys

    def _share(self, prefilling: list[Sequence], draft: StepDraft, may_start: bool, is_policys: bool) -> None:
        if prefilling:
            first = prefilling[0]
            self._plan_overdue(prefilling, draft, may_start)
            if is_policys:
                self._add_chunk(first, draft, at_least=1)
            shortest_first = sorted(prefilling, key=_num_left)
            for sequence in shortest_first:
                if may_start:
                    self._start_waiting(draft, sequence.num_left)
                if sequence is first and draft.has_chunks and self._budget.has_target:
                    return  # whoever has got on is the sooner done
                self._add_chunk(sequence, draft, at_least=int(sequence is shortest_first[0]))
        if may_start:
            self._start_waiting(draft)

    def _plan_overdue(self, prefilling: list[Sequence], draft: StepDraft, may_start: bool) -> None:
        """Give a small chunk to who is next to start, and to the one who has waited longest, if it was too long."""
        group = self._admission.next_group
        if group is not None:
            group.next_since = group.next_since or draft.step
            if may_start and draft.step - group.next_since > PATIENCE:
                self._start_next(group, draft, most=_small(draft))
        longest = min(prefilling, key=_last_step)
        if draft.step - longest.last_step > PATIENCE:
            self._add_chunk(longest, draft, at_least=1, most=_small(draft))

    def _start_waiting(self, draft: StepDraft, shorter_than: int | None = None) -> None:
        """Let groups start while there is room, up to the first that has no fewer than `shorter_than` tokens to do."""
        while draft.num_left:
            group = self._admission.next_group
            if group is None or (shorter_than is not None and group.open[0].num_left >= shorter_than):
                return
            if not self._start_next(group, draft):
                return

    def _start_next(self, group: SequenceGroup, draft: StepDraft, most: int | None = None) -> bool:
        """Let `group` start, with `most` tokens of each prompt; False if it cannot now."""
        if not self._admission.admit(group, draft):
            return False
        for sequence in self._decodes.plan(group, draft):
            self._add_chunk(sequence, draft, most=most)
        return True

    def _add_chunk(self, sequence: Sequence, draft: StepDraft, *, at_least: int = 0, most: int | None = None) -> None:
        """Add as many of a sequence's tokens as the step's budget allows; a folded group's only to the prompt's end.

        The first chunk of a step has `MIN_CHUNK` tokens at least. Nothing is added for who is in the step already.
        """
        group, start, num_left = sequence.group, sequence.num_scheduled, sequence.num_left
        if group.status is not RUNNING or sequence.last_step == draft.step:
            return  # a victim, of one of its own group too
        if group.is_folded and start < group.num_prompt:
            num_left = min(num_left, group.num_prompt - start)
        if most is not None:
            num_left = min(num_left, most)
        number = self._sizes.most(num_left, start, draft, at_least if draft.has_chunks else MIN_CHUNK)
        if number > 0:
            self._decodes.add(sequence, number, draft)


def _small(draft: StepDraft) -> int:
    """The tokens of a small chunk, which leaves some for whose turn it is."""
    return max(1, min(MIN_CHUNK, draft.num_left // 4))
