"""A runner that stands before another one, and raises or blocks where a test wants it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from app.engine.schedule.step_plan import Chunks, StepPlan, StepResult
from benchmarks.passing_runner import PassingRunner

if TYPE_CHECKING:  # not in `tests.server.hanging`, where the server imports torch
    from app.engine.execute.interfaces import InFlight, Runner


class HasRunner(Protocol):
    """An engine, or a test's setup in its place."""

    runner: Runner


class FaultyRunner(PassingRunner):
    """Stands before the runner that `wrap` takes from an engine. Engine thread only.

    A subclass overrides the hooks that it needs; each may raise or block. A step that a hook ends has done what a step
    has done that fails there: its row changes are applied in any case.
    """

    def wrap(self, engine: HasRunner) -> None:
        """Take the place of the engine's runner."""
        self._runner, engine.runner = engine.runner, self

    def before_launch(self, plan: StepPlan) -> None:
        """Called before anything of a step but its row changes is done."""

    def before_transfer(self, plan: StepPlan) -> None:
        """Called after `before_launch`, before the swaps and copies of a step that has any."""

    def before_sample(self, plan: StepPlan) -> None:
        """Called in every step with chunks, for the time after they are computed and before any token is sampled."""

    def before_result(self, plan: StepPlan) -> None:
        """Called when the engine waits for a launched step, before the result is returned."""

    def launch(self, plan: StepPlan) -> InFlight:
        try:
            self.before_launch(plan)
            if plan.moves_blocks:
                self.before_transfer(plan)
        except BaseException:
            rows = (plan.row_starts, plan.table_writes, plan.released_rows)
            self._runner.launch(StepPlan(plan.step, Chunks(), (), (), *rows))
            raise
        try:
            if plan.chunks:
                self.before_sample(plan)
        except BaseException:
            self._runner.launch(replace(plan, logit_rows=(), sampled=(), pooled=(), scored=()))
            self.masks.fill(plan)  # and nothing is accepted
            raise
        return FaultyStep(self._runner.launch(plan), self)


@dataclass
class FaultyStep:
    """Implements `InFlight` by a launched step."""

    step: InFlight
    runner: FaultyRunner

    @property
    def plan(self) -> StepPlan:
        return self.step.plan

    @property
    def run_ahead(self) -> int:
        return self.step.run_ahead

    def wait(self) -> StepResult:
        self.runner.before_result(self.plan)
        return self.step.wait()
