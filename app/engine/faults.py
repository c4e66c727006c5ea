"""Faults on purpose: the test hooks of the engine behind one object, absent in production."""

from __future__ import annotations

from typing import Protocol

from app.engine.schedule.plan import StepPlan


class FaultPlan(Protocol):
    """Decides, on the engine thread, what goes wrong."""

    def before_launch(self, plan: StepPlan) -> None:
        """Called before a step is computed; may raise to make it fail."""
