"""Launches steps on the device and reads, some steps later, the tokens that they sampled.

Only `LaunchedStep.wait` waits for the device. A row's token goes to the next step on the device; the host gets the
token through a ring that is copied beside later steps.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import torch

from app.contract.engine_counts import GraphCounts
from app.engine.execute.gpu.device import Copy, Device
from app.engine.execute.gpu.graphs import StepGraphs
from app.engine.execute.gpu.inputs import DeviceInputs
from app.engine.execute.gpu.memory import Staging
from app.engine.execute.gpu.sampler import RING_SIZE, DeviceSampler
from app.engine.execute.gpu.shapes import StepShape
from app.engine.execute.host_sampler import Sampler
from app.engine.execute.kv_cache import KVCache
from app.engine.execute.masks import Masks
from app.engine.schedule.step_plan import RowStart, SampleLogprobs, StepPlan, StepResult, make_samples


class Samples(NamedTuple):
    """Tokens of a step, their log-probabilities, and what grammars say of them (see StepResult)."""

    token_ids: list[int]
    logprobs: list[SampleLogprobs | None]
    ends: list[bool | None] | None = None
    failures: Mapping[int, str] = MappingProxyType({})


class Timed(NamedTuple):
    """The begin and the end of some work on the device."""

    begin: torch.Event
    end: torch.Event

    def seconds(self) -> float:
        """Return the seconds in between; the end must be over."""
        return self.begin.elapsed_time(self.end) / 1000


@dataclass(eq=False, slots=True)
class LaunchedStep:
    """Implements `InFlight` by a step that was launched on the device."""

    plan: StepPlan
    run_ahead: int
    read: Callable[[], Samples]
    computing: Timed | None
    transfer: Timed | None
    mask_s: float | None = None

    def wait(self) -> StepResult:
        read = self.read()
        samples = make_samples(self.plan, read.token_ids, read.logprobs, read.ends)
        duration_s, transfer_s = (
            0.0 if timed is None else timed.seconds() for timed in (self.computing, self.transfer)
        )
        return StepResult(
            self.plan.step,
            samples,
            duration_s + (self.mask_s or 0.0),
            transfer_s,
            sum(token_id < 0 for token_id in read.token_ids),
            read.failures,
            self.mask_s,
        )


@dataclass(eq=False)
class GpuRunner:
    """Implements `Runner`; up to `run_ahead` steps are in flight when the next one is launched."""

    device: Device
    staging: Staging
    inputs: DeviceInputs
    sampler: DeviceSampler
    host_sampler: Sampler
    steps: StepGraphs
    cache: KVCache
    masks: Masks
    run_ahead: int

    def __post_init__(self) -> None:
        assert self.run_ahead + 1 < RING_SIZE
        self._host_logits_RV = torch.empty(0, 0)  # pinned when it is first needed
        self._on_host: set[int] = set()  # rows that the host samples for
        self._num_logprobs: dict[int, int] = {}  # requested for rows that the device samples, by row

    @property
    def counts(self) -> GraphCounts:
        return self.steps.counts

    @property
    def has_idle_work(self) -> bool:
        return self.steps.num_missing > 0

    def work_idly(self) -> None:
        self.steps.capture_next()
        self.inputs.invalidate_inputs()
        self.sampler.rings.correct_counter()

    def launch(self, plan: StepPlan) -> LaunchedStep:
        for row in plan.released_rows:
            self._release(row)
        for start in plan.row_starts:
            self._start(start)
        shape = self.inputs.stage(plan)
        transfer = self._timed(partial(self._transfer, plan)) if plan.moves_blocks else None
        if shape is None:
            return LaunchedStep(plan, self.run_ahead, partial(_read_nothing, transfer), None, transfer)
        return self._compute(plan, shape, transfer)

    def _compute(self, plan: StepPlan, shape: StepShape, transfer: Timed | None) -> LaunchedStep:
        rings, count = self.sampler.rings, len(plan.sampled)
        began = time.perf_counter()
        mask_s = time.perf_counter() - began if self.masks.fill(plan) else None
        is_constrained = self.masks.has_constraints
        ring_index = rings.next_index()
        try:
            self.staging.flush()
            if is_constrained:
                self.device.run(partial(self.sampler.copy_masks, self.masks.buffers, count))
            computing = self._timed(partial(self.steps.run, shape))
        except BaseException:
            rings.correct_counter()
            raise
        rows = [row for row, _ in plan.sampled]
        # Before the samples are read, their rows may go to other sequences.
        num_logprobs = {i: self._num_logprobs[row] for i, row in enumerate(rows) if row in self._num_logprobs}
        copies = rings.copies(ring_index, count, with_logprobs=bool(num_logprobs))
        on_host = [i for i, row in enumerate(rows) if row in self._on_host]
        if on_host:
            self.inputs.invalidate_rows([rows[i] for i in on_host])
            copies += self._logit_copies(on_host)
        fetched = self.device.fetch(copies, after=computing.end)

        def read() -> Samples:
            fetched.synchronize()  # the only wait of a step: each one gives the interpreter's lock away
            token_ids = rings.tokens(ring_index, count)
            logprobs: list[SampleLogprobs | None] = [None] * count
            for i, num_best in num_logprobs.items():
                logprobs[i] = rings.logprobs(ring_index, i, num_best)
            if on_host:
                host_rows, positions = [rows[i] for i in on_host], _sampled_positions(plan, on_host)
                sampled = self.host_sampler.sample(
                    self._host_logits_RV, host_rows, positions, allowed=lambda i: self.masks.allowed(on_host[i])
                )
                for i, (token_id, found) in zip(on_host, sampled, strict=True):
                    token_ids[i], logprobs[i] = token_id, found
            if not is_constrained:
                return Samples(token_ids, logprobs)
            accepted = self.masks.accept(token_ids)
            return Samples(accepted.token_ids, logprobs, accepted.ends, accepted.failures)

        # Masks depend on the tokens before them, so the host must have read those.
        run_ahead = 0 if on_host or is_constrained else self.run_ahead
        return LaunchedStep(plan, run_ahead, read, computing, transfer, mask_s)

    def _logit_copies(self, logit_rows: Sequence[int]) -> list[Copy]:
        logits_RV = self.steps.step.arena.logits_RV
        if len(self._host_logits_RV) < len(logit_rows):
            self._host_logits_RV = self.device.pinned(len(logit_rows), logits_RV.shape[1], dtype=torch.float32)
        return [(logits_RV[row], target) for row, target in zip(logit_rows, self._host_logits_RV, strict=False)]

    def _start(self, start: RowStart) -> None:
        self._release(start.row)
        self.masks.start(start)
        if self.sampler.start(start):
            self._on_host.add(start.row)
            self.host_sampler.start(start)
        elif start.sampling.num_logprobs is not None:
            self._num_logprobs[start.row] = start.sampling.num_logprobs

    def _release(self, row: int) -> None:
        self._on_host.discard(row)
        self._num_logprobs.pop(row, None)
        self.host_sampler.release(row)
        self.masks.release(row)

    def _transfer(self, plan: StepPlan) -> None:
        """Swap, load and copy the plan's blocks."""
        cache, run = self.cache, self.device.run
        run(partial(cache.swap_out, plan.swap_outs))
        for load in plan.loads:
            run(partial(cache.import_blocks, load.block_ids, load.data))
        run(partial(cache.swap_in, plan.swap_ins))
        run(partial(cache.copy_blocks, plan.copies))

    def _timed(self, issue: Callable[[], object]) -> Timed:
        begin = self.device.record_event()
        issue()
        return Timed(begin, self.device.record_event())


def _read_nothing(transfer: Timed | None) -> Samples:
    """Wait for the end of a step that only moved blocks."""
    if transfer is not None:
        transfer.end.synchronize()
    return Samples([], [])


def _sampled_positions(plan: StepPlan, samples: Sequence[int]) -> list[int]:
    """Return the positions, in prompt + output, of some of the tokens that a plan samples."""
    firsts = list(accumulate(plan.chunks.counts, initial=0))
    logit_rows = [plan.logit_rows[i] for i in samples]
    chunks = [bisect_right(firsts, row) - 1 for row in logit_rows]
    return [plan.chunks.starts[chunk] + row - firsts[chunk] + 1 for chunk, row in zip(chunks, logit_rows, strict=True)]
