"""The hash of a schedule: equal for runs that plan the same steps."""

from __future__ import annotations

from app.engine.schedule.step_plan import StepPlan


class Trace:
    """Combines plans into one hash. Ints and tuples of ints have the same hash in every process, unlike strings."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, plan: StepPlan) -> None:
        """Add a plan to the hash."""
        self.value = hash(
            (
                self.value,
                plan.step,
                plan.chunks,
                plan.logit_rows,
                plan.sampled,
                plan.released_rows,
                plan.swap_outs,
                plan.swap_ins,
                plan.copies,
                tuple((write.row, write.first, write.block_ids) for write in plan.table_writes),
            )
        )
