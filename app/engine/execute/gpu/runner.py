"""Launches steps on the device and reads, some steps later, the tokens that they sampled.

Only `Launched.wait` waits for the device. A row's token goes to the next step on the device; the host gets the token
through a ring that is copied beside later steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from app.engine.execute.gpu.device import Device, Event
from app.engine.execute.gpu.inputs import DeviceInputs
from app.engine.execute.gpu.rings import NUM_PLACES
from app.engine.execute.gpu.sampler import DeviceSampler
from app.engine.execute.gpu.shapes import StepShape
from app.engine.execute.gpu.staging import Staging
from app.engine.execute.host_sampler import Sampler
from app.engine.execute.interfaces import StepGraph
from app.engine.execute.kv_cache import KVCache
from app.engine.faults import FaultPlan
from app.engine.schedule.step_plan import RowStart, SampleLogprobs, StepPlan, StepResult, make_samples

Draws = tuple[list[int], list[SampleLogprobs | None]]
"""Tokens of a step, and their log-probabilities."""


class Steps(StepGraph[StepShape, None], Protocol):
    """Issues the step of a shape, with its inputs in the step memory; some have no graph yet (see graphs.py)."""

    @property
    def num_graphs(self) -> int:
        """Graphs captured so far."""

    @property
    def num_missing(self) -> int:
        """Graphs that could still be captured."""

    def capture_next(self) -> None:
        """Capture a graph; this overwrites the memory's inputs."""


class Parts(NamedTuple):
    """The parts of a runner; `logits_RV` are those of the newest step."""

    device: Device
    staging: Staging
    inputs: DeviceInputs
    sampler: DeviceSampler
    host_sampler: Sampler
    steps: Steps
    cache: KVCache
    logits_RV: Tensor


class Timed(NamedTuple):
    """The begin and the end of some work on the device."""

    begin: Event
    end: Event

    def seconds(self) -> float:
        """Wait for the end and return the seconds in between."""
        self.end.synchronize()
        return self.end.seconds_since(self.begin)


class Launched:
    """A step that was launched on the device. See InFlight."""

    def __init__(
        self,
        plan: StepPlan,
        run_ahead: int,
        draws: Callable[[], Draws],
        computing: Timed | None,
        transfer: Timed | None,
        faults: FaultPlan | None,
    ) -> None:
        self.plan = plan
        self.run_ahead = run_ahead
        self._draws, self._computing, self._transfer, self._faults = draws, computing, transfer, faults

    def wait(self) -> StepResult:
        """See InFlight.wait."""
        if self._faults is not None:
            self._faults.before_result(self.plan)
        samples = make_samples(self.plan, *self._draws())
        times = [0.0 if timed is None else timed.seconds() for timed in (self._computing, self._transfer)]
        return StepResult(self.plan.step, samples, *times)


class GpuRunner:
    """Implements `Runner`; up to `run_ahead` steps are in flight when the next one is launched."""

    def __init__(self, parts: Parts, run_ahead: int, faults: FaultPlan | None = None) -> None:
        assert run_ahead + 1 < NUM_PLACES
        self.parts, self._run_ahead, self._faults = parts, run_ahead, faults
        self._host_logits_RV = self._make_host_logits(0)
        self._on_host: set[int] = set()  # rows that the host samples for
        self._num_logprobs: dict[int, int] = {}  # requested for rows that the device samples, by row

    @property
    def num_graphs(self) -> int:
        """See Runner.num_graphs."""
        return self.parts.steps.num_graphs

    @property
    def has_idle_work(self) -> bool:
        """See Runner.has_idle_work."""
        return self.parts.steps.num_missing > 0

    def work_idly(self) -> None:
        """See Runner.work_idly."""
        self.parts.steps.capture_next()
        self.parts.inputs.forget()
        self.parts.sampler.rings.lose()

    def launch(self, plan: StepPlan) -> Launched:
        """See Runner.launch."""
        for row in plan.released_rows:
            self._release(row)
        for start in plan.row_starts:
            self._start(start)
        shape = self.parts.inputs.take(plan)
        if self._faults is not None:
            self._faults.before_launch(plan)
        transfer = self._timed(partial(self._transfer, plan)) if plan.moves_blocks else None
        if shape is None:
            return Launched(plan, self._run_ahead, lambda: ([], []), None, transfer, self._faults)
        return self._compute(plan, shape, transfer)

    def _compute(self, plan: StepPlan, shape: StepShape, transfer: Timed | None) -> Launched:
        parts, rings, count = self.parts, self.parts.sampler.rings, len(plan.sampled)
        place = rings.expect()
        try:
            parts.staging.flush()
            computing = self._timed(partial(parts.steps.run, shape))
        except BaseException:
            rings.lose()
            raise
        rows = [row for row, _ in plan.sampled]
        # Before the samples are read, their rows may go to other sequences.
        wanted = {draw: self._num_logprobs[row] for draw, row in enumerate(rows) if row in self._num_logprobs}
        fetched = rings.fetch(place, count, with_logprobs=bool(wanted))
        draws = [draw for draw, row in enumerate(rows) if row in self._on_host]
        if not draws:
            read = partial(self._read, fetched, place, count, wanted)
            return Launched(plan, self._run_ahead, read, computing, transfer, self._faults)
        mine = [rows[draw] for draw in draws]
        parts.inputs.distrust(mine)
        fetched += self._fetch_logits(draws)
        positions = _drawn_positions(plan)
        draw_mine = partial(parts.host_sampler.sample, rows=mine, positions=[positions[draw] for draw in draws])
        read = partial(self._read_and_draw, fetched, place, count, wanted, draws, draw_mine)
        return Launched(plan, 0, read, computing, transfer, self._faults)

    def _read(self, fetched: Sequence[Event], place: int, count: int, wanted: Mapping[int, int]) -> Draws:
        """Wait for the tokens that the device sampled, and the log-probabilities requested for some of them."""
        for event in fetched:
            event.synchronize()
        rings = self.parts.sampler.rings
        logprobs: list[SampleLogprobs | None] = [None] * count
        for draw, num_best in wanted.items():
            logprobs[draw] = rings.logprobs(place, draw, num_best)
        return rings.tokens(place, count), logprobs

    def _read_and_draw(
        self,
        fetched: Sequence[Event],
        place: int,
        count: int,
        wanted: Mapping[int, int],
        draws: Sequence[int],
        draw_mine: Callable[[Tensor], Sequence[tuple[int, SampleLogprobs | None]]],
    ) -> Draws:
        """Wait for the device's samples, and sample those in `draws` here, from the logits that were fetched."""
        token_ids, logprobs = self._read(fetched, place, count, wanted)
        for draw, drawn in zip(draws, draw_mine(self._host_logits_RV), strict=True):
            token_ids[draw], logprobs[draw] = drawn
        return token_ids, logprobs

    def _fetch_logits(self, draws: Sequence[int]) -> list[Event]:
        if len(self._host_logits_RV) < len(draws):
            self._host_logits_RV = self._make_host_logits(len(draws))
        fetch, logits_RV = self.parts.device.fetch, self.parts.logits_RV
        return [fetch(logits_RV[draw], self._host_logits_RV[place]) for place, draw in enumerate(draws)]

    def _make_host_logits(self, count: int) -> Tensor:
        return self.parts.device.pinned(count, self.parts.logits_RV.shape[1], dtype=torch.float32)

    def _start(self, start: RowStart) -> None:
        self._release(start.row)
        sampler, wanted = self.parts.sampler, start.sampling.num_logprobs
        sampler.start(start)
        if sampler.is_drawn_on_host(start.sampling):
            self._on_host.add(start.row)
            self.parts.host_sampler.start(start)
        elif wanted is not None:
            self._num_logprobs[start.row] = wanted

    def _release(self, row: int) -> None:
        self._on_host.discard(row)
        self._num_logprobs.pop(row, None)
        self.parts.host_sampler.release(row)

    def _transfer(self, plan: StepPlan) -> None:
        """Swap and copy the plan's blocks."""
        if self._faults is not None:
            self._faults.before_transfer(plan)
        cache, run = self.parts.cache, self.parts.device.run
        run(partial(cache.swap_out, plan.swap_outs))
        run(partial(cache.swap_in, plan.swap_ins))
        run(partial(cache.copy_blocks, plan.copies))

    def _timed(self, issue: Callable[[], object]) -> Timed:
        begin = self.parts.device.mark()
        issue()
        return Timed(begin, self.parts.device.mark())


def _drawn_positions(plan: StepPlan) -> list[int]:
    """Return the positions, in prompt + answer, of the tokens that a plan samples."""
    firsts = list(accumulate(plan.chunks.counts, initial=0))
    places = [bisect_right(firsts, row) - 1 for row in plan.logit_rows]
    starts = [plan.chunks.starts[place] - firsts[place] for place in places]
    return [start + row + 1 for start, row in zip(starts, plan.logit_rows, strict=True)]
