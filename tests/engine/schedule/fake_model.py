"""A model that computes nothing but checks everything: it runs plans over a shadow KV cache.

The next token is a crc32 of all tokens read back through the block table, so a block that was handed out twice, freed
too early or never filled changes the answer. `Driver` runs a scheduler against it, some steps ahead if asked to.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import crc32

from app.engine.schedule.plan import Chunk, Sample, StepPlan, StepResult
from app.engine.schedule.scheduler import Scheduler, SchedulerLimits
from app.engine.schedule.sequence import UNKNOWN_TOKEN_ID, Sequence
from app.messages import EngineRequest
from app.params import SamplingParams


def next_token(tokens: list[int]) -> int:
    """The token that follows `tokens`."""
    return crc32(array("q", tokens).tobytes()) % 50_000


def reference(prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    """The first `num_tokens` of the answer to `prompt`."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def make_request(request_id: str, num_prompt: int = 4, max_tokens: int = 4, arrival_time: float = 0.0) -> EngineRequest:
    """A request whose prompt depends on its id."""
    first = crc32(request_id.encode()) % 1000
    prompt = tuple(range(first, first + num_prompt))
    return EngineRequest(request_id, prompt, SamplingParams(max_tokens=max_tokens, seed=0), arrival_time)


def make_limits(**given: int) -> SchedulerLimits:
    """Small limits: blocks of 4 slots, no lack of anything."""
    defaults = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return SchedulerLimits(**{**defaults, "max_model_len": 10_000, **given})


@dataclass
class _Row:
    sequence_id: int
    tokens: list[int]
    table: list[int] = field(default_factory=list)


class FakeModel:
    """Runs plans in order; each assertion is a promise of `StepPlan`."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[tuple[int, int], int] = {}
        self._rows: dict[int, _Row] = {}
        self._touched: dict[int, set[int]] = {}  # blocks that a step in flight may touch

    def run(self, plan: StepPlan) -> StepResult:
        """Compute `plan`; it stays in flight until `done`."""
        for row in plan.released_rows:
            del self._rows[row]
        for start in plan.row_starts:
            assert start.row > 0 and start.row not in self._rows, "the row is taken"
            self._rows[start.row] = _Row(start.sequence_id, [*start.prompt_token_ids, *start.output_token_ids])
        for append in plan.block_appends:
            table = self._rows[append.row].table
            assert append.first == len(table) and append.block_ids
            for touched in self._touched.values():
                assert touched.isdisjoint(append.block_ids), "a step in flight may still touch the block"
            table += append.block_ids
        tables = [block_id for row in self._rows.values() for block_id in row.table]
        assert 0 not in tables and len(tables) == len(set(tables)), "a block is in two tables"
        assert len({chunk.row for chunk in plan.chunks}) == len(plan.chunks), "two chunks in one row"
        self._touched[plan.step] = {block_id for chunk in plan.chunks for block_id in self._rows[chunk.row].table}
        samples, logit_rows, num_tokens = [], [], 0
        for chunk in plan.chunks:
            num_tokens += len(chunk.token_ids)
            sample = self._compute(chunk)
            if sample is not None:
                samples.append(sample)
                logit_rows.append(num_tokens - 1)
        assert plan.num_tokens == num_tokens and plan.logit_rows == tuple(logit_rows)
        return StepResult(plan.step, tuple(samples))

    def done(self, step: int) -> None:
        """The step is no longer in flight."""
        del self._touched[step]

    def _compute(self, chunk: Chunk) -> Sample | None:
        row = self._rows[chunk.row]
        assert row.sequence_id == chunk.sequence_id and chunk.token_ids
        for position, token_id in enumerate(chunk.token_ids, chunk.start):
            known = row.tokens[position]
            assert token_id in (known, UNKNOWN_TOKEN_ID)
            self._slots[row.table[position // self._block_size], position % self._block_size] = known
        end = chunk.start + len(chunk.token_ids)
        if end < len(row.tokens):
            return None
        places = (divmod(position, self._block_size) for position in range(end))
        read = [self._slots[row.table[index], slot] for index, slot in places]
        row.tokens.append(next_token(read))
        return Sample(chunk.sequence_id, row.tokens[-1])


class Driver:
    """A scheduler and a fake model, stepped as the engine would; sequences end by length."""

    def __init__(self, **limits: int) -> None:
        self.scheduler = Scheduler(make_limits(**limits))
        self.model = FakeModel(self.scheduler.limits.block_size)
        self.in_flight: deque[tuple[StepPlan, StepResult]] = deque()
        self.finished: list[Sequence] = []
        self._num_added = 0

    def add(self, num_prompt: int = 4, max_tokens: int = 4, arrival_time: float | None = None) -> Sequence:
        """Add a request, by default one that arrives after all others; ids are r1, r2, ..."""
        self._num_added += 1
        arrived = float(self._num_added) if arrival_time is None else arrival_time
        return self.scheduler.add(make_request(f"r{self._num_added}", num_prompt, max_tokens, arrived))

    def launch(self) -> StepPlan | None:
        """Schedule and run one step, which then is in flight."""
        plan = self.scheduler.schedule(0.0)
        if plan is not None:
            self.in_flight.append((plan, self.model.run(plan)))
        return plan

    def settle(self) -> list[Sequence]:
        """Take in the oldest step in flight, finish who has all tokens, return who gained one."""
        plan, result = self.in_flight.popleft()
        self.model.done(plan.step)
        gained = [sequence for sequence, _ in self.scheduler.update(result, 0.0)]
        for sequence in gained:
            output = sequence.output_token_ids
            assert output == reference(sequence.prompt_token_ids, len(output))
            if len(output) == sequence.request.params.max_tokens:
                self.scheduler.finish(sequence)
                self.finished.append(sequence)
        return gained

    def step(self) -> StepPlan | None:
        """Launch the next step, then settle all but the `run_ahead` newest."""
        plan = self.launch()
        depth = self.scheduler.limits.run_ahead if plan else 0
        while len(self.in_flight) > depth:
            self.settle()
        self.scheduler.check_integrity()
        return plan

    def steps(self, count: int) -> None:
        """Run `count` steps."""
        for _ in range(count):
            self.step()

    def run_until(self, is_reached: Callable[[], bool], max_steps: int = 100) -> int:
        """Step until `is_reached`; return the number of steps."""
        for step in range(max_steps):
            if is_reached():
                return step
            self.step()
        raise AssertionError(f"not reached after {max_steps} steps")

    def run(self, max_steps: int) -> int:
        """Run until everything is finished; return the number of steps."""
        return self.run_until(lambda: not self.scheduler.has_work and not self.in_flight, max_steps + 1)
