"""Chunk sizes: how much of a prompt goes into a step, by the step's limits of tokens and of time."""

from __future__ import annotations

from app.engine.schedule.rests import Rests
from app.engine.schedule.step_budget import StepBudget
from app.engine.schedule.step_builder import StepPlanBuilder


class ChunkSizes:
    """Sizes the prompt chunks of steps. Engine thread only."""

    def __init__(self, budget: StepBudget, rests: Rests | None = None) -> None:
        self._budget = budget
        self._rests = rests

    def most(self, num_left: int, start: int, builder: StepPlanBuilder, at_least: int) -> int:
        """Return how many of a prompt's `num_left` tokens, from position `start` on, the step may take in."""
        budget = self._budget
        if builder.limit_s is None:
            builder.limit_s = budget.limit_s(builder.num_tokens if builder.has_decodes else 0, builder.num_attended)
            if self._rests is not None and builder.resting is not None:
                builder.limit_s = min(builder.limit_s, self._rests.limit_s)
        number = budget.chunk(num_left, start, builder.num_tokens, builder.num_attended, builder.limit_s, at_least)
        return min(number, builder.num_left)

    def has_room(self, builder: StepPlanBuilder, start: int) -> bool:
        """Whether the step may take another chunk, from position `start` on; else a group would hold unused blocks."""
        return not builder.has_chunks or self.most(1, start, builder, 0) > 0
