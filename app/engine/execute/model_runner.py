"""Turns a step plan into sampled tokens: row state, model, sampler."""

from __future__ import annotations

from typing import Protocol

import torch

from app.engine.execute.batch import BatchState
from app.engine.execute.graphs import StepGraph
from app.engine.execute.sampler import Sampler
from app.engine.execute.threads import ThreadChoice
from app.engine.faults import FaultPlan
from app.engine.schedule.plan import Sample, StepPlan, StepResult


class InFlight(Protocol):
    """A launched step."""

    plan: StepPlan

    def wait(self) -> StepResult:
        """Wait until the step is computed and return its samples."""


class Computed:
    """A step that was computed when it was launched, as every step on the CPU is."""

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        self.plan = plan
        self._result = result

    def wait(self) -> StepResult:
        """See InFlight.wait."""
        return self._result


class ModelRunner:
    """Executes plans in order. Engine thread only."""

    def __init__(
        self,
        batch: BatchState,
        graph: StepGraph,
        sampler: Sampler,
        threads: ThreadChoice,
        faults: FaultPlan | None = None,
    ) -> None:
        self._batch = batch
        self._graph = graph
        self._sampler = sampler
        self._threads = threads
        self._faults = faults

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> InFlight:
        """Start computing a plan. Whatever this raises, the row changes of the plan have been applied."""
        for row in plan.released_rows:
            self._sampler.release(row)
        for start in plan.row_starts:
            self._sampler.start(start)
        inputs = self._batch.apply(plan)
        if self._faults is not None:
            self._faults.before_launch(plan)
        sampled = _sampled_chunks(plan)
        with self._threads.measured(inputs.paged.num_tokens):
            logits_RV = self._graph.run(inputs)
            drawn = self._sampler.sample(logits_RV, [row for row, _ in sampled])
        samples = tuple(
            Sample(sequence_id, token_id, logprobs)
            for (_, sequence_id), (token_id, logprobs) in zip(sampled, drawn, strict=True)
        )
        return Computed(plan, StepResult(plan.step, samples))


def _sampled_chunks(plan: StepPlan) -> list[tuple[int, int]]:
    """Return (state row, sequence id) for each logit row: the chunk whose last token row it is."""
    by_last_row = {}
    row = -1
    for chunk in plan.chunks:
        row += len(chunk.token_ids)
        by_last_row[row] = (chunk.row, chunk.sequence_id)
    return [by_last_row[row] for row in plan.logit_rows]
