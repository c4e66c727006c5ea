"""Faults that lie with a request: every step that computes some token of it raises."""

from __future__ import annotations

from app.engine.faults import FaultPlan
from app.engine.schedule.step_plan import StepPlan
from tests.engine.execute.faulty import Injected


class Poison(FaultPlan):
    """Raises in every step with a token of one of `prompts` at or after its position: {prompt: position}.

    With `together` it takes two of them in one step.
    """

    def __init__(self, prompts: dict[tuple[int, ...], int], *, together: bool = False) -> None:
        self.num_raised = 0
        self._prompts = prompts
        self._needed = 2 if together else 1
        self._from: dict[int, int] = {}  # by sequence id

    def before_sample(self, plan: StepPlan) -> None:
        """See FaultPlan."""
        for start in plan.row_starts:
            if start.prompt_token_ids in self._prompts:
                self._from[start.sequence_id] = self._prompts[start.prompt_token_ids]
        bad = [
            chunk
            for chunk in plan.chunks
            if chunk.sequence_id in self._from and chunk.start + len(chunk.token_ids) > self._from[chunk.sequence_id]
        ]
        if len(bad) >= self._needed:
            self.num_raised += 1
            raise Injected("poison")
