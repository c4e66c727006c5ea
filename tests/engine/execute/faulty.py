"""A ready-made FaultPlan: what raises is said in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from app.engine.faults import FaultPlan
from app.engine.schedule.step_plan import StepPlan


class Injected(RuntimeError):
    """The fault of a test, unlike any other."""


class Faulty(FaultPlan):
    """Raises at some calls of some hooks, counted from 1 for each hook: `Faulty(before_sample={3, 4})`.

    `seen` notes every call as (hook, step), `error` is what it raises.
    """

    def __init__(self, error: type[BaseException] = Injected, **calls: Collection[int]) -> None:
        self.error = error
        self.seen: list[tuple[str, int]] = []
        self._calls = calls
        self._counts: Counter[str] = Counter()

    def before_launch(self, plan: StepPlan) -> None:
        """See FaultPlan."""
        self._reach("before_launch", plan)

    def before_transfer(self, plan: StepPlan) -> None:
        """See FaultPlan."""
        self._reach("before_transfer", plan)

    def before_sample(self, plan: StepPlan) -> None:
        """See FaultPlan."""
        self._reach("before_sample", plan)

    def before_result(self, plan: StepPlan) -> None:
        """See FaultPlan."""
        self._reach("before_result", plan)

    def _reach(self, hook: str, plan: StepPlan) -> None:
        self.seen.append((hook, plan.step))
        self._counts[hook] += 1
        if self._counts[hook] in self._calls.get(hook, ()):
            raise self.error(f"{hook}, call {self._counts[hook]}")
