"""Faults on purpose: the test hooks of the engine behind one object, absent in production."""

from __future__ import annotations

from typing import Protocol

from app.engine.schedule.step_plan import StepPlan


class FaultPlan(Protocol):
    """Decides, on the engine thread, what goes wrong: each hook may raise, or take its time.

    A subclass overrides the hooks it needs.
    """

    def before_launch(self, plan: StepPlan) -> None:
        """Called when a step's row changes are applied and nothing else is done."""

    def before_transfer(self, plan: StepPlan) -> None:
        """Called before the swaps and copies of a step that has some, after `before_launch`."""

    def before_sample(self, plan: StepPlan) -> None:
        """Called when the chunks are computed and no token has been taken, in every step that has chunks."""

    def before_result(self, plan: StepPlan) -> None:
        """Called when somebody waits for a launched step, before the result is handed over."""
