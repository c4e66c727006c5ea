"""A view of the engine that counts the processor time of what it does."""

from __future__ import annotations

import time
from itertools import count

from app.contract.engine_picture import EnginePicture
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.step_plan import StepPlan, StepResult
from app.engine.schedule.step_results import StepProgress
from app.engine.view import View


class CountedView(View):
    """A view that counts, from the outside, the thread's seconds for each step and for each turn's end.

    Attributes:
        steps_s: what it took to record each step.
        ends_s: what each turn's end took, most of them without a picture.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, count(1))
        self.steps_s: list[float] = []
        self.ends_s: list[float] = []

    def take_step(self, plan: StepPlan, result: StepResult, progress: StepProgress, now: float) -> None:
        began = time.thread_time()
        super().take_step(plan, result, progress, now)
        self.steps_s.append(time.thread_time() - began)

    def take_picture(self, now: float) -> EnginePicture | None:
        began = time.thread_time()
        picture = super().take_picture(now)
        self.ends_s.append(time.thread_time() - began)
        return picture
