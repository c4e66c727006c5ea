"""Turns a step plan into sampled tokens: row state, copies of blocks, model, sampler."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count, repeat

from torch import Tensor

from app.contract.engine_counts import GraphCounts
from app.engine.execute.cpu.batch import BatchState, StepInputs
from app.engine.execute.cpu.graph import HostGraph
from app.engine.execute.cpu.scoring import score
from app.engine.execute.cpu.thread_choice import ThreadChoice
from app.engine.execute.host_sampler import Sampler
from app.engine.execute.kv_cache import KVCache
from app.engine.execute.masks import Masks
from app.engine.execute.pooling import pool
from app.engine.schedule.step_plan import NO_TOKEN, Sample, SampleLogprobs, StepPlan, StepResult, make_samples
from app.runtime.clock import Clock


class ComputedStep:
    """Implements `InFlight` by a step that was computed when it was launched, as every step on the CPU is."""

    run_ahead = 0

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        self.plan = plan
        self._result = result

    def wait(self) -> StepResult:
        return self._result


class CpuRunner:
    """Implements `Runner`: executes plans in order, each at once. Engine thread only; `clock` times the steps.

    `num_host_samples` counts the tokens that no kernel sampled: one row of logits at a time takes much longer.
    """

    has_idle_work = False

    def __init__(
        self,
        batch: BatchState,
        graph: HostGraph,
        sampler: Sampler,
        cache: KVCache,
        threads: ThreadChoice,
        masks: Masks,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._batch, self._graph, self._sampler, self._cache = batch, graph, sampler, cache
        self._threads, self.masks, self._clock = threads, masks, clock
        self.num_host_samples = 0
        self.counts = GraphCounts()

    def work_idly(self) -> None:
        """Do nothing: no step gets faster by it."""

    def launch(self, plan: StepPlan) -> ComputedStep:
        for row in plan.released_rows:
            self._sampler.release(row)
            self.masks.release(row)
        for start in plan.row_starts:
            self._sampler.start(start)
            self.masks.start(start)
        if plan.table_writes:
            self._cache.prefault(max(max(write.block_ids) for write in plan.table_writes))
        inputs = self._batch.apply(plan)
        transfer_s = self._transfer(plan)
        started, num_before = self._clock(), self.num_host_samples
        has_masks = self.masks.fill(plan)
        mask_s = self._clock() - started if has_masks else None
        samples, failures = self._compute(plan, inputs) if plan.chunks else ((), {})
        pooled = pool(self._graph.hidden_TD, plan.pooled) if plan.pooled else ()
        scored = score(self._graph, plan.scored) if plan.scored else ()
        result = StepResult(
            plan.step,
            samples,
            self._clock() - started,
            transfer_s,
            failures=failures,
            mask_s=mask_s,
            pooled=pooled,
            scored=scored,
        )
        if failures or self.num_host_samples > num_before:  # kernels leave rows without any number to the host
            num_without_token = sum(sample.token_id < 0 for sample in samples)
            result = replace(result, num_without_token=num_without_token)
        return ComputedStep(plan, result)

    def _transfer(self, plan: StepPlan) -> float:
        """Swap, load and copy the plan's blocks; return the seconds, 0 if there are no such blocks."""
        if not plan.moves_blocks:
            return 0.0
        started = self._clock()
        self._cache.swap_out(plan.swap_outs)
        for load in plan.loads:
            self._cache.import_blocks(load.block_ids, load.data)
        self._cache.swap_in(plan.swap_ins)
        self._cache.copy_blocks(plan.copies)
        return self._clock() - started

    def _compute(self, plan: StepPlan, inputs: StepInputs) -> tuple[tuple[Sample, ...], Mapping[int, str]]:
        """Return the samples, and why sequences cannot go on."""
        with self._threads.measured(inputs.num_tokens):
            logits_RV = self._graph.run(inputs)
            if self._graph.samples is None:  # of a graph alone: an eager step samples on the host
                self.counts.num_eager_steps += 1
            else:
                self.counts.num_graph_steps += 1
            return self._sample(plan, logits_RV) if plan.sampled else ((), {})

    def _sample(self, plan: StepPlan, logits_RV: Tensor) -> tuple[tuple[Sample, ...], Mapping[int, str]]:
        """Collect the tokens that kernels sampled, and sample the other rows here."""
        record, num_rows = self._graph.samples, len(plan.sampled)
        by_kernels = None if record is None else record.token_ids(num_rows)
        found = {} if record is None else record.logprobs(num_rows)
        token_ids: Iterable[int] = by_kernels or ()
        logprobs: Iterable[SampleLogprobs | None] = map(found.get, count()) if found else repeat(None)
        num_on_host = num_rows if by_kernels is None else by_kernels.count(NO_TOKEN)
        self.num_host_samples += num_on_host
        if num_on_host:
            rows = [row for row, _ in plan.sampled]
            positions = self._batch.sampled_positions(plan)
            sampled = self._sampler.sample(logits_RV, rows, positions, by_kernels, self.masks.allowed)
            token_ids = [token_id for token_id, _ in sampled]
            logprobs = [own or given for (_, own), given in zip(sampled, logprobs, strict=False)]
        if not self.masks.has_constraints:
            return make_samples(plan, token_ids, logprobs), {}
        accepted = self.masks.accept(list(token_ids))
        return make_samples(plan, accepted.token_ids, logprobs, accepted.ends), accepted.failures
