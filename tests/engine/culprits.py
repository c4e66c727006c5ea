"""Culprits: every step that computes their tokens raises."""

from __future__ import annotations

from app.engine.schedule.step_plan import StepPlan
from tests.engine.execute.faulty_runner import FaultyRunner
from tests.engine.execute.injected_faults import InjectedError


class Culprits(FaultyRunner):
    """Raises in every step that computes a token at or after a position of a prompt; `prompts` is {prompt: position}.

    With `together` a step raises only if it computes such tokens of two requests.
    """

    def __init__(self, prompts: dict[tuple[int, ...], int], *, together: bool = False) -> None:
        self.num_raised = 0
        self._prompts = prompts
        self._num_needed = 2 if together else 1
        self._from: dict[int, int] = {}  # by sequence id

    def before_sample(self, plan: StepPlan) -> None:
        for start in plan.row_starts:
            if start.prompt_token_ids in self._prompts:
                self._from[start.sequence_id] = self._prompts[start.prompt_token_ids]
        found = [
            chunk
            for chunk in plan.chunks
            if chunk.sequence_id in self._from and chunk.start + len(chunk.token_ids) > self._from[chunk.sequence_id]
        ]
        if len(found) >= self._num_needed:
            self.num_raised += 1
            raise InjectedError("culprit")
