"""Fault injection: the test hooks of the engine behind one object, absent in production."""

from __future__ import annotations

from typing import Protocol

from app.engine.schedule.step_plan import StepPlan


class FaultPlan(Protocol):
    """Injects faults on the engine thread: each hook may raise or block.

    A subclass overrides the hooks that it needs.
    """

    def before_launch(self, plan: StepPlan) -> None:
        """Called after a step's row changes are applied, before anything else."""

    def before_transfer(self, plan: StepPlan) -> None:
        """Called after `before_launch`, before the swaps and copies of a step that has any."""

    def before_sample(self, plan: StepPlan) -> None:
        """Called after the chunks are computed, before any token is sampled, in every step with chunks."""

    def before_result(self, plan: StepPlan) -> None:
        """Called when the engine waits for a launched step, before the result is returned."""
