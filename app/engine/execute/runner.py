"""What an engine asks of whoever computes its steps."""

from __future__ import annotations

from typing import Protocol

from app.engine.schedule.plan import StepPlan, StepResult


class InFlight(Protocol):
    """A launched step. `run_ahead`: how many steps, this one included, may be in flight when the next is launched."""

    plan: StepPlan
    run_ahead: int

    def wait(self) -> StepResult:
        """Wait until the step is computed and return its samples."""


class Runner(Protocol):
    """Executes plans in order. Engine thread only."""

    def launch(self, plan: StepPlan) -> InFlight:
        """Start computing a plan.

        Whatever this raises, the row changes of the plan have been applied: they come first, which makes no difference
        to its copies. Which blocks have been copied is then unknown.
        """

    @property
    def num_graphs(self) -> int:
        """CUDA graphs captured so far."""

    @property
    def has_idle_work(self) -> bool:
        """Whether there is something that makes later steps faster, for when nobody waits."""

    def work_idly(self) -> None:
        """Do a piece of that, of well under a second; there is no step in flight."""
