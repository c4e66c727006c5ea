"""A FaultyRunner that raises at chosen calls of its hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from app.engine.schedule.step_plan import StepPlan
from tests.engine.execute.faulty_runner import FaultyRunner


class InjectedError(RuntimeError):
    """Raised by tests only, never by the product."""


class InjectedFaults(FaultyRunner):
    """Raises at chosen calls of each hook, counted from 1: `InjectedFaults(before_sample={3, 4})`.

    `seen` lists every call as (hook, step); `error` is the type that is raised. A fault comes at a later call of its
    hook where it `may_hit` no step before.
    """

    def __init__(self, error: type[BaseException] = InjectedError, **calls: Collection[int]) -> None:
        self.error = error
        self.seen: list[tuple[str, int]] = []
        self._calls = calls
        self._counts: Counter[str] = Counter()
        self._num_due: Counter[str] = Counter()

    def before_launch(self, plan: StepPlan) -> None:
        self._call("before_launch", plan)

    def before_transfer(self, plan: StepPlan) -> None:
        self._call("before_transfer", plan)

    def before_sample(self, plan: StepPlan) -> None:
        self._call("before_sample", plan)

    def before_result(self, plan: StepPlan) -> None:
        self._call("before_result", plan)

    def may_hit(self, plan: StepPlan) -> bool:
        """Return whether a step may fail."""
        return True

    def _call(self, hook: str, plan: StepPlan) -> None:
        self.seen.append((hook, plan.step))
        self._counts[hook] += 1
        self._num_due[hook] += self._counts[hook] in self._calls.get(hook, ())
        if self._num_due[hook] and self.may_hit(plan):
            self._num_due[hook] -= 1
            raise self.error(f"{hook}, call {self._counts[hook]}")
