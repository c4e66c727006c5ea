"""Chunk sizes: how much of a prompt goes into a step, by its tokens and by the time that it may take."""

from __future__ import annotations

from app.engine.schedule.rests import Rests
from app.engine.schedule.step_budget import StepBudget
from app.engine.schedule.step_builder import StepDraft


class ChunkSizes:
    """Measures the chunks of steps. Engine thread only."""

    def __init__(self, budget: StepBudget, rests: Rests | None = None) -> None:
        self._budget = budget
        self._rests = rests

    def most(self, num_left: int, start: int, draft: StepDraft, at_least: int) -> int:
        """Return how many of a prompt's `num_left` tokens, from position `start` on, the step may take in."""
        budget = self._budget
        if draft.limit_s is None:
            draft.limit_s = budget.limit_s(draft.num_tokens if draft.has_decodes else 0, draft.num_attended)
            if self._rests is not None and draft.resting is not None:
                draft.limit_s = min(draft.limit_s, self._rests.limit_s)
        number = budget.chunk(num_left, start, draft.num_tokens, draft.num_attended, draft.limit_s, at_least)
        return min(number, draft.num_left)

    def has_room(self, draft: StepDraft, start: int) -> bool:
        """Whether the step may take in another chunk, from position `start` on: nobody takes blocks for nothing."""
        return not draft.has_chunks or self.most(1, start, draft, 0) > 0
