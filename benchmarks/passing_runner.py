"""A runner before another one, for what is to be done before or after a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `tests.server.hanging` imports this before the server imports torch
    from app.contract.engine_counts import GraphCounts
    from app.engine.execute.interfaces import InFlight, Runner
    from app.engine.execute.masks import Masks
    from app.engine.schedule.step_plan import StepPlan


class PassingRunner:
    """Implements `Runner` by another one, which gets every call. Engine thread only."""

    _runner: Runner

    def launch(self, plan: StepPlan) -> InFlight:
        return self._runner.launch(plan)

    @property
    def masks(self) -> Masks:
        return self._runner.masks

    @property
    def counts(self) -> GraphCounts:
        return self._runner.counts

    @property
    def has_idle_work(self) -> bool:
        return self._runner.has_idle_work

    def work_idly(self) -> None:
        self._runner.work_idly()
