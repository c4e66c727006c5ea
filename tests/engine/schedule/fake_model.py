"""A model that computes nothing but checks every access: it runs plans over shadow copies of both memories.

The content of a slot is a hash of its token, of all tokens before it and of the seed (see `fake_tokens`). So the first
read of a block detects that it was allocated twice, freed too early, copied too late, shared across seeds (requests of
different cache salts have different seeds) or never filled. `Driver` runs a scheduler with it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple
from zlib import crc32

from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.late_sequences import LateSequences
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.policy import Policy
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.sequence import UNKNOWN_TOKEN_ID, Sequence
from app.engine.schedule.step_plan import BlockCopy, Chunk, Sample, SampleRow, StepPlan, StepResult, TableWrite
from tests.engine.schedule.fake_tokens import EOS_TOKEN_ID, LogitSource, TokenRow, num_words, reference, told_choice
from tests.engine.schedule.open_requests import num_open

REREAD_EVERY = 64  # steps: how often all slots of a row are read again, not only those that changed


def make_request(
    request_id: str,
    num_prompt: int = 4,
    max_tokens: int = 4,
    arrival_time: float = 0.0,
    *,
    cache_salt: str | None = None,
    priority: int = 0,
    tenant: str | None = None,
    account: str = "",
    told: Iterable[int | None] = (),
    **params: object,
) -> EngineRequest:
    """A request whose prompt depends on its id, and its seed on salt and tenant; `params` go to `SamplingParams`.

    So many tokens of each choice are `told`; None: the choice has ended.
    """
    first = crc32(request_id.encode()) % 1000
    prompt, seed = tuple(range(first, first + num_prompt)), crc32(f"{cache_salt or ''}{tenant or ''}".encode())
    given = SamplingParams(max_tokens=max_tokens, seed=seed, **params)
    return EngineRequest(
        request_id,
        prompt,
        given,
        arrival_time,
        told=tuple(told_choice(prompt, count, choice, given) for choice, count in enumerate(told)),
        priority=priority,
        tenant=tenant,
        cache_salt=cache_salt,
        account=account,
    )


def make_limits(**given: float) -> SchedulerLimits:
    """Small limits: blocks of 4 slots, and enough of everything."""
    defaults = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return SchedulerLimits(**{**defaults, "max_model_len": 10_000, **given})


class Costs(NamedTuple):
    """Seconds that a step takes: per new token, per attended token, per moved block, and per step."""

    per_token: float = 0.0
    per_context: float = 0.0
    per_block: float = 0.0
    per_step: float = 0.0


FREE = Costs()


class StepFailed(Exception):
    """An injected fault."""


class FakeModel:
    """Runs plans in order; each assertion is a guarantee of `StepPlan`.

    Between `run` and `done` a step is in flight: blocks of its tables may be shared but not allocated again.
    """

    def __init__(self, block_size: int, costs: Costs = FREE) -> None:
        self.num_steps = 0
        self._block_size = block_size
        self._costs = costs
        self._device: dict[int, list[int | None]] = {}
        self._host: dict[int, list[int | None]] = {}
        self._rows: dict[int, TokenRow] = {}
        self._num_tables: Counter[int] = Counter()  # block -> number of rows whose table contains it
        self._fills: list[tuple[int, list[int]]] = []
        self._forks: set[int] = set()  # rows that sample without computing, from the logits of another row
        self._touched: dict[int, set[int]] = {}  # step in flight -> blocks it may touch; -n is host block n
        self._written: dict[int, list[int]] = {}  # step in flight -> blocks with new tokens

    def run(self, plan: StepPlan) -> StepResult:
        """Compute `plan`; it stays in flight until `done`."""
        self._change(plan)
        self._copy(plan)
        self._start(plan)
        sources: dict[int, LogitSource] = {}  # by token row
        num_tokens = num_context = num_draft = 0
        for chunk in plan.chunks:
            num_context += len(chunk.token_ids) * (2 * chunk.start + len(chunk.token_ids) + 1) // 2
            row = self._compute(chunk, plan.step)
            known = chunk.token_ids[: len(row.tokens) - chunk.start]
            if chunk.start + len(known) == len(row.tokens):
                last = num_tokens + len(known) - 1
                for index, content in enumerate(row.hashes_of(chunk.token_ids, chunk.start)[len(known) - 1 :], last):
                    sources[index] = LogitSource(row, content, is_draft=index > last)
            num_tokens += len(chunk.token_ids)
            num_draft += len(chunk.token_ids) - len(known)
        assert (plan.num_tokens, plan.num_draft_tokens) == (num_tokens, num_draft)
        samples = self._sample(plan, sources)
        costs, num_moved = self._costs, len(plan.swap_outs) + len(plan.swap_ins)
        duration = costs.per_token * num_tokens + costs.per_context * num_context + costs.per_step
        return StepResult(plan.step, samples, duration, costs.per_block * num_moved)

    def fail(self, plan: StepPlan, error: Exception, *, is_late: bool) -> None:
        """Raise during `plan`: before data is moved or computed, or (`is_late`) after; then all data is garbage.

        Raises:
            Exception: `error`, always; the step is not in flight, and rows and tables have the plan's changes.
        """
        self._change(plan)
        if is_late:
            self._copy(plan)
        self._fills.clear()
        self._start(plan)
        if is_late:
            for chunk in plan.chunks:
                self._compute(chunk, plan.step)
            self.spoil([plan])
        else:
            self.done(plan.step)
        raise error

    def spoil(self, plans: list[StepPlan]) -> None:
        """Overwrite all data written by steps in flight with garbage, and end these steps."""
        for plan in plans:
            written = (copy.target for copy in (*plan.swap_ins, *plan.copies))
            for block_id in (*written, *self._written.pop(plan.step)):
                self._device[block_id] = [None] * self._block_size
            for copy in plan.swap_outs:
                self._host[copy.target] = [None] * self._block_size
            del self._touched[plan.step]

    def fill(self, block_id: int, contents: list[int]) -> None:
        """Write a device block from outside of the model in the next step, after that step's swap-outs."""
        assert not self._is_touched(block_id), "a step in flight may still touch the block"
        self._fills.append((block_id, contents))

    def done(self, step: int) -> None:
        """End a step in flight."""
        del self._touched[step], self._written[step]

    # --- What a plan changes ----------------------------------------------------------------------------------------

    def _change(self, plan: StepPlan) -> None:
        self.num_steps += 1
        for row in plan.released_rows:
            self._num_tables.subtract(self._rows.pop(row).table)

    def _copy(self, plan: StepPlan) -> None:
        """Copy blocks; copies of one kind may run in any order, so no source is the target of another copy."""
        device, host, blank = self._device, self._host, [None] * self._block_size
        assert len({copy.target for copy in plan.swap_outs}) == len(plan.swap_outs), "two copies go to one block"
        for copy in plan.swap_outs:
            assert not self._is_touched(-copy.target), "a step in flight may still touch the host block"
            host[copy.target] = list(device.get(copy.source, blank))
        for block_id, contents in self._fills:
            device[block_id] = list(contents)
        self._fills.clear()
        self._check_targets(plan.swap_ins)
        for copy in plan.swap_ins:
            assert copy.source in host, f"nothing was copied to host block {copy.source}"
            device[copy.target] = list(host[copy.source])
        self._check_targets(plan.copies)
        assert not {copy.source for copy in plan.copies} & {copy.target for copy in plan.copies}, "a copy of a copy"
        for copy in plan.copies:
            device[copy.target] = list(device.get(copy.source, blank))

    def _check_targets(self, copies: tuple[BlockCopy, ...]) -> None:
        targets = {copy.target for copy in copies}
        assert len(targets) == len(copies), "two copies go to one block"
        for block_id in targets:
            assert block_id > 0 and not self._num_tables[block_id], "all of a block in a table is overwritten"
            assert not self._is_touched(block_id), "a step in flight may still touch the block"

    def _start(self, plan: StepPlan) -> None:
        for start in plan.row_starts:
            assert start.row > 0 and start.row not in self._rows, "the row is taken"
            self._rows[start.row] = TokenRow.from_start(start)
        for write in plan.table_writes:
            self._write_table(write)
        computed = {chunk.row for chunk in plan.chunks}
        assert len(computed) == len(plan.chunks), "two chunks in one row"
        self._forks = {sampled.row for sampled in plan.sampled} - computed
        touched = {block_id for chunk in plan.chunks for block_id in self._rows[chunk.row].table}
        touched.update(block_id for copy in plan.copies for block_id in copy)
        touched.update(copy.target for copy in plan.swap_ins)
        touched.update(-copy.source for copy in plan.swap_ins)
        touched.update(-copy.target for copy in plan.swap_outs)
        self._touched[plan.step] = touched
        self._written[plan.step] = []

    def _write_table(self, write: TableWrite) -> None:
        row, first, size = self._rows[write.row], write.first, self._block_size
        assert first <= len(row.table) and write.block_ids, "the table has a hole"
        if first < len(row.table):
            assert len(write.block_ids) == 1, "one entry at a time is overwritten, by its copy"
            row.num_read = min(row.num_read, first * size)
            self._num_tables[row.table.pop(first)] -= 1
        for index, block_id in enumerate(write.block_ids, first):
            assert block_id > 0, "block 0 is reserved"
            if not self._num_tables[block_id] and self._is_touched(block_id):
                starts = row.hashes[index * size : index * size + 1]
                is_found = starts and self._device.get(block_id, [None])[0] == starts[0]
                assert is_found, "a step in flight may still touch the block"
            row.table.insert(index, block_id)
            self._num_tables[block_id] += 1

    def _is_touched(self, block_id: int) -> bool:
        return any(block_id in touched for touched in self._touched.values())

    # --- What a plan computes ---------------------------------------------------------------------------------------

    def _compute(self, chunk: Chunk, step: int) -> TokenRow:
        row, start, end = self._rows[chunk.row], chunk.start, chunk.start + len(chunk.token_ids)
        assert row.sequence_id == chunk.sequence_id and start < end and start < len(row.tokens)
        known = min(end, len(row.tokens))
        last = chunk.token_ids[known - start - 1]
        if last != row.tokens[known - 1]:
            self._take_unknown(row, last, known)
        assert list(chunk.token_ids[: known - start - 1]) == row.tokens[start : known - 1], "tokens of another sequence"
        if end > known:
            assert known == start + 1 and not row.is_beam, "only a decoding sequence may have draft tokens, and no beam"
            assert last != UNKNOWN_TOKEN_ID and row.sampled_step not in self._touched, "a draft after an unknown token"
        self._read(row, 0 if self.num_steps % REREAD_EVERY == 0 else row.num_read, start)
        self._write(row, start, row.hashes_of(chunk.token_ids, start), step)
        row.num_read = known
        return row

    def _take_unknown(self, row: TokenRow, token_id: int, end: int) -> None:
        """Accept a last token that differs from the sampled one: not yet known, or chosen from a beam's candidates."""
        if token_id == UNKNOWN_TOKEN_ID:
            assert row.sampled_step in self._touched and not row.is_beam, (
                "the token is already known, or was never sampled"
            )
        else:
            assert row.is_beam and token_id in row.candidates and end == len(row.tokens), "tokens of another sequence"
            row.put_last(token_id)

    def _read(self, row: TokenRow, first: int, end: int) -> None:
        size, hashes = self._block_size, row.hashes
        for index in range(first // size, -(-end // size)):
            start, stop = index * size, min(end, index * size + size)
            slots = self._device.get(row.table[index])
            assert slots is not None and slots[: stop - start] == hashes[start:stop], (
                f"sequence {row.sequence_id} reads other tokens than its own in block {row.table[index]}"
            )

    def _write(self, row: TokenRow, first: int, contents: list[int], step: int) -> None:
        size, start, end = self._block_size, first, first + len(contents)
        while start < end:
            index, slot = divmod(start, size)
            block_id, stop = row.table[index], min(end, index * size + size)
            if self._num_tables[block_id] != 1:
                self._check_forks(row, index, block_id)
            slots = self._device.get(block_id)
            if slots is None:
                slots = self._device[block_id] = [None] * size
            slots[slot : slot + stop - start] = contents[start - first : stop - first]
            self._written[step].append(block_id)
            start = stop

    def _check_forks(self, row: TokenRow, index: int, block_id: int) -> None:
        """A shared block is not written (I4), except by a leader whose forks start in the same step."""
        for number, other in self._rows.items():
            if other is not row and block_id in other.table:
                is_same = other.table[index] == block_id and other.hashes == row.hashes
                assert number in self._forks and is_same, f"block {block_id} is shared and written"

    def _sample(self, plan: StepPlan, sources: dict[int, LogitSource]) -> tuple[Sample, ...]:
        assert len(plan.logit_rows) == len(plan.sampled), "a logit row without a sampled row"
        assert set(plan.logit_rows) == sources.keys(), "exactly the rows with all tokens computed are sampled"
        return tuple(
            self._sample_row(sources[logit_row], sampled, plan.step)
            for logit_row, sampled in zip(plan.logit_rows, plan.sampled, strict=True)
        )

    def _sample_row(self, source: LogitSource, sampled: SampleRow, step: int) -> Sample:
        row, computed = self._rows[sampled.row], source.row
        assert row.sequence_id == sampled.sequence_id, "the row belongs to another sequence"
        if source.is_draft:
            assert row is computed and row.sampled_step == step, "sampled after the draft of another row, or too early"
            return row.sample(step) if row.hashes[-1] == source.content else row.sample_rejected(source.content)
        assert row.sampled_step < step, "sampled twice in a step"
        num_tokens = len(computed.tokens) - (computed.sampled_step == step)
        assert len(row.tokens) == num_tokens and row.hashes[-1] == computed.hashes[num_tokens - 1], (
            "sampled after tokens of another sequence"
        )
        return row.sample(step)


class Driver:
    """A scheduler and a fake model, stepped as by the engine; sequences end by length, beam searches by themselves."""

    def __init__(self, *, policy: Policy | None = None, late: LateSequences | None = None, **limits: float) -> None:
        self.scheduler = Scheduler(make_limits(**limits), policy=policy, eos_token_ids=(EOS_TOKEN_ID,), late=late)
        self.model = FakeModel(self.scheduler.limits.block_size)
        self.in_flight: deque[tuple[StepPlan, StepResult]] = deque()
        self.finished: list[Sequence] = []
        self._num_added = 0

    def add(
        self, num_prompt: int = 4, max_tokens: int = 4, arrival_time: float | None = None, **given: object
    ) -> Sequence:
        """Add a request, which by default arrives after all others, and return its first sequence.

        Ids are r1, r2, ...; `given` are further arguments of `make_request`.
        """
        self._num_added += 1
        arrived = float(self._num_added) if arrival_time is None else arrival_time
        request = make_request(f"r{self._num_added}", num_prompt, max_tokens, arrived, **given)
        return self.scheduler.add(request).sequences[0]

    def launch(self) -> StepPlan | None:
        """Schedule and run one step, which is in flight afterwards."""
        plan = self.scheduler.schedule(0.0)
        if plan is not None:
            self.in_flight.append((plan, self.model.run(plan)))
        return plan

    def finish_step(self) -> list[Sequence]:
        """Process the oldest step in flight and finish complete sequences; return the sequence of each new token."""
        plan, result = self.in_flight.popleft()
        self.model.done(plan.step)
        progress = self.scheduler.update(result, 0.0)
        gained = [sequence for sequence, _ in progress.gained]
        for sequence in dict.fromkeys(gained):
            self._check_output(sequence)
        for group in progress.searched:
            self._finish(*group.open)
        return gained

    def abandon(self) -> list[SequenceGroup]:
        """Let all steps in flight fail; return the groups that ran in them."""
        plans = [plan for plan, _ in self.in_flight]
        self.in_flight.clear()
        self.model.spoil(plans)
        return self.scheduler.abandon(plans[0])

    def step(self) -> StepPlan | None:
        """Launch the next step, then finish all but the `run_ahead` newest ones."""
        plan = self.launch()
        while len(self.in_flight) > (self.scheduler.limits.run_ahead if plan else 0):
            self.finish_step()
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
        """Step until all requests are finished; return the number of steps."""
        return self.run_until(lambda: not num_open(self.scheduler) and not self.in_flight, max_steps + 1)

    def _check_output(self, sequence: Sequence) -> None:
        params, output = sequence.request.params, sequence.output_token_ids
        if params.use_beam_search:
            return
        words = num_words(params)
        assert output == reference(sequence.prompt_token_ids, len(output), sequence.choice, params.seed, words)
        if len(output) == params.max_tokens:
            self._finish(sequence)

    def _finish(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.scheduler.finish(sequence)
            self.finished.append(sequence)
