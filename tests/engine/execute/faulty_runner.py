"""A runner that stands before another one, and raises or blocks where a test wants it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from app.contract.engine_counts import GraphCounts
from app.engine.schedule.step_plan import Chunks, StepPlan, StepResult

if TYPE_CHECKING:  # not in `tests.server.hanging`, where the server imports torch
    from app.engine.execute.interfaces import InFlight, Runner
    from app.engine.execute.masks import Masks


class HasRunner(Protocol):
    """An engine, or a test's setup in its place."""

    runner: Runner


class FaultyRunner:
    """Implements `Runner` by the one that `wrap` takes from an engine. Engine thread only.

    A subclass overrides the hooks that it needs; each may raise or block. A step that a hook ends has done what a step
    has done that fails there: its row changes are applied in any case.
    """

    _runner: Runner

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
        """See Runner.launch."""
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

    @property
    def masks(self) -> Masks:
        """See Runner.masks."""
        return self._runner.masks

    @property
    def counts(self) -> GraphCounts:
        """See Runner.counts."""
        return self._runner.counts

    @property
    def num_graph_shapes(self) -> int:
        """See Runner.num_graph_shapes."""
        return self._runner.num_graph_shapes

    @property
    def has_idle_work(self) -> bool:
        """See Runner.has_idle_work."""
        return self._runner.has_idle_work

    def work_idly(self) -> None:
        """See Runner.work_idly."""
        self._runner.work_idly()


@dataclass
class FaultyStep:
    """Implements `InFlight` by a launched step."""

    step: InFlight
    runner: FaultyRunner

    @property
    def plan(self) -> StepPlan:
        """See InFlight."""
        return self.step.plan

    @property
    def run_ahead(self) -> int:
        """See InFlight."""
        return self.step.run_ahead

    def wait(self) -> StepResult:
        """See InFlight.wait."""
        self.runner.before_result(self.plan)
        return self.step.wait()
