"""The scheduler: decides what each step computes, and owns the state of every sequence.

It is pure: no clock, no randomness, no threads; time comes in as `now`. There is no prefill and no decode, only
sequences with tokens to do. The rules, in the order in which `schedule` applies them:

1. Resumed sequences run again while there are seats (`max_num_seqs`; a PAUSED one takes none and has no row).
2. Running sequences with one token to do get it, in the policy's order. Who needs a block and finds none takes it
   from a victim: PAUSED ones first, then RUNNING ones from the end of the order, up to and including the asker. The
   first RUNNING one is never a victim, nor is one that gained no token since it was a victim.
3. Prefill chunks of running sequences fill what is left of the budget, in the policy's order.
4. Waiting sequences start, preempted ones first, while seats, budget and blocks last; nobody overtakes the first.
   One starts when the blocks of all its tokens fit plus a watermark of 1 % (none while nothing else runs). It gets
   them at once, so a prefill never stops half-way for want of blocks. PAUSED ones make room when that is enough.

Blocks of a sequence that a step in flight may still touch are fenced until that step is done; they count as soon
free, so nobody is preempted for blocks that are on their way back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import NamedTuple

from app.engine.schedule.block_tables import BlockTables
from app.engine.schedule.blocks import BlockPool
from app.engine.schedule.draft import StepDraft
from app.engine.schedule.lines import SequenceLines
from app.engine.schedule.plan import Sample, StepPlan, StepResult
from app.engine.schedule.policy import Policy, fcfs
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, Sequence
from app.errors import ConfigurationError, ContextLengthExceeded, InvalidValue, KVCapacityExceeded
from app.messages import EngineRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the scheduler may hand out; `num_blocks` counts usable blocks (block 0 is not among them).

    `run_ahead` is how many steps may be in flight when the next one is planned: 0 where a step's tokens are read
    before the next step starts. At most `max_num_batched_tokens` sequences run, whatever `max_num_seqs` is.

    Raises:
        ConfigurationError: a limit below 1 (`run_ahead`: below 0).
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    run_ahead: int = 0

    def __post_init__(self) -> None:
        for limit in fields(self):
            value, lowest = getattr(self, limit.name), 0 if limit.name == "run_ahead" else 1
            if value < lowest:
                raise ConfigurationError(f"{limit.name} is {value}; it must be at least {lowest}.", param=limit.name)


class _InFlight(NamedTuple):
    """A step that was planned and is not done, with the sequences of its chunks and of its logit rows."""

    plan: StepPlan
    sequences: list[Sequence]
    sampled: list[Sequence]


class Scheduler:
    """Plans steps over paged KV blocks. Engine thread only.

    Each `schedule` that returns a plan is followed by `update` or `abandon` for it, in the order of the plans.
    """

    def __init__(self, limits: SchedulerLimits, policy: Policy = fcfs) -> None:
        self.limits = limits
        self.num_preemptions = 0
        self._policy = policy
        self._max_running = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        self._watermark = -(-limits.num_blocks // 100)
        self._pool = BlockPool(limits.num_blocks)
        self._tables = BlockTables(self._pool, limits.block_size, limits.run_ahead)
        self._lines = SequenceLines(self._max_running)
        self._in_flight: deque[_InFlight] = deque()
        self._sequences: dict[str, Sequence] = {}  # unfinished ones by request id
        self._next_sequence_id = 1
        self._next_step = 1

    # --- Counts -------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self._sequences)

    @property
    def has_ready_work(self) -> bool:
        """Whether `schedule` will find something to do, now or when the steps in flight are done; else sleep."""
        return self._lines.has_ready

    @property
    def num_running(self) -> int:
        """Sequences that take a seat."""
        return len(self._lines.running)

    @property
    def num_waiting(self) -> int:
        """Sequences without blocks: not started, or preempted."""
        return len(self._sequences) - self.num_running - self.num_paused

    @property
    def num_paused(self) -> int:
        """Paused sequences that still have their blocks."""
        return len(self._lines.paused) + len(self._lines.resuming)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out now; fenced ones are not among them."""
        return self._pool.num_free

    def is_open(self, request_id: str) -> bool:
        """Whether a request with this id is unfinished."""
        return request_id in self._sequences

    # --- Requests come and go -----------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> Sequence:
        """Put `request` in line and return its sequence.

        Raises:
            InvalidValue: the prompt is empty.
            ContextLengthExceeded: prompt and `max_tokens` exceed the context.
            KVCapacityExceeded: they would not fit the pool even alone.
            ValueError: a request with this id is not finished. In all cases nothing was changed.
        """
        if request.id in self._sequences:
            raise ValueError(f"request {request.id} is already there")
        sequence = Sequence.from_request(self._next_sequence_id, request)
        self._check_fits_alone(sequence)
        self._next_sequence_id += 1
        sequence.sort_key = self._policy(sequence)
        self._sequences[request.id] = sequence
        self._lines.add(sequence)
        return sequence

    def abort(self, request_id: str) -> Sequence | None:
        """Finish the sequence of a request, wherever it stands, and return it; None if there is none. Idempotent."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self.finish(sequence)
        return sequence

    def finish(self, sequence: Sequence) -> None:
        """End `sequence`: its row is free, its blocks too once no step in flight may touch them. Idempotent."""
        if sequence.status is FINISHED:
            return
        self._lines.move(sequence, FINISHED)
        self._tables.drop(sequence)
        del self._sequences[sequence.request.id]

    def pause(self, request_id: str) -> None:
        """Stop scheduling a request; it keeps its blocks while nobody needs them. Idempotent; unknown ids are ignored.

        A sequence that was preempted and has not gained a token since pauses with its next token. A token that a
        step in flight is sampling is not lost.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or not sequence.ready:
            return
        self._lines.set_ready(sequence, False)
        if sequence.status is RUNNING and not sequence.is_protected:
            self._lines.move(sequence, PAUSED)

    def resume(self, request_id: str) -> None:
        """Schedule a paused request again, as soon as there is a seat. Idempotent; unknown ids are ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and not sequence.ready:
            self._lines.set_ready(sequence, True)

    def preempt(self, sequence: Sequence) -> None:
        """Drop the blocks of a RUNNING or PAUSED sequence; it will start again at the head of the line.

        Raises:
            ValueError: it is in another state; nothing was changed.
        """
        self._lines.move(sequence, PREEMPTED)
        self._tables.drop(sequence)
        sequence.num_scheduled = sequence.num_computed = 0
        sequence.is_protected = True
        sequence.num_preemptions += 1
        self.num_preemptions += 1

    # --- Steps --------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step; None if nothing can run before a step in flight is done or something changes.

        Raises:
            ValueError: more than `run_ahead` steps are in flight; nothing was changed.
        """
        if len(self._in_flight) > self.limits.run_ahead:
            raise ValueError(f"{len(self._in_flight)} steps are in flight, run_ahead is {self.limits.run_ahead}")
        draft = StepDraft(self._next_step, now, self.limits.max_num_batched_tokens, self._lines.rows)
        self._resume_paused()
        self._plan_running(draft)
        self._start_waiting(draft)
        plan = draft.build()
        if plan is not None:
            self._next_step += 1
            self._in_flight.append(_InFlight(plan, draft.sequences, draft.sampled))
        return plan

    def update(self, result: StepResult, now: float) -> list[tuple[Sequence, Sample]]:
        """Take in what came of the oldest step in flight; return each unfinished sequence that gained a token.

        Who has all the tokens it may have must then be given to `finish`. Tokens for finished sequences are dropped.

        Raises:
            ValueError: `result` is not of the oldest step in flight, or has not one sample per logit row; nothing was
                changed.
        """
        step = self._oldest_in_flight(result.step)
        if len(result.samples) != len(step.sampled):
            raise ValueError(f"step {result.step}: {len(result.samples)} samples, {len(step.sampled)} logit rows")
        self._finish_step(step)
        for sequence, chunk in zip(step.sequences, step.plan.chunks, strict=True):
            if sequence.block_table:  # else it was preempted or finished meanwhile
                sequence.num_computed = chunk.start + len(chunk.token_ids)
        gained = []
        for sequence, sample in zip(step.sampled, result.samples, strict=True):
            status = sequence.status
            if status is FINISHED:
                continue
            assert sample.sequence_id == sequence.id, "samples are not in the order of the logit rows"
            sequence.output_token_ids.append(sample.token_id)
            gained.append((sequence, sample))
            if sequence.is_protected and status is RUNNING:
                sequence.is_protected = False
                if not sequence.ready:
                    self._lines.move(sequence, PAUSED)
        return gained

    def abandon(self, plan: StepPlan) -> list[Sequence]:
        """Give up the oldest step in flight, which failed; finish and return its unfinished sequences.

        Raises:
            ValueError: `plan` is not the oldest step in flight; nothing was changed.
        """
        step = self._oldest_in_flight(plan.step)
        self._finish_step(step)
        sequences = [sequence for sequence in step.sequences if sequence.status is not FINISHED]
        for sequence in sequences:
            self.finish(sequence)
        return sequences

    def _resume_paused(self) -> None:
        for sequence in tuple(self._lines.resuming):
            if self.num_running == self._max_running:
                return
            if not self._is_in_flight(sequence):  # its new row must hear of the tokens still being sampled
                self._lines.move(sequence, RUNNING)

    def _plan_running(self, draft: StepDraft) -> None:
        prefilling = []
        for sequence in tuple(self._lines.running):
            if sequence.status is not RUNNING:
                continue  # it became a victim of one before it
            num_left = sequence.num_left
            if num_left > 1:
                prefilling.append(sequence)
            elif num_left == 1 and self._grow(sequence, draft):
                draft.add(sequence, 1)
        for sequence in prefilling:  # never victims any more: those come from the asker's end of the order
            if draft.num_left:
                draft.add(sequence, min(sequence.num_left, draft.num_left))

    def _grow(self, sequence: Sequence, draft: StepDraft) -> bool:
        """Give `sequence` the blocks for its next token, from victims if need be; False if it cannot have them now."""
        limits = self.limits
        num_tokens = sequence.num_scheduled + 1
        if num_tokens + limits.run_ahead <= len(sequence.block_table) * limits.block_size:
            return True
        count = self._tables.num_missing(sequence, num_tokens)
        if count <= 0:
            return True
        while not self._pool.can_allocate(count):
            if count <= self._pool.num_soon_free:
                return False
            victim = self._victim_for(sequence)
            if victim is None:
                return False
            self.preempt(victim)
            if victim is sequence:
                return False
        draft.append_blocks(sequence, self._tables.append(sequence, count))
        return True

    def _victim_for(self, asker: Sequence) -> Sequence | None:
        lines = self._lines
        for line in (lines.paused, lines.resuming):
            if line:
                return line[-1]
        for sequence in reversed(lines.running):
            if sequence is lines.running[0]:
                break
            if not sequence.is_protected:
                return sequence
            if sequence is asker:
                break
        return None

    def _start_waiting(self, draft: StepDraft) -> None:
        while draft.num_left and self.num_running < self._max_running:
            sequence = self._lines.next_to_start
            if sequence is None or self._is_in_flight(sequence):
                return
            count = self._tables.num_missing(sequence, sequence.num_tokens)
            if not self._has_room_to_start(count + (self._watermark if self.num_running else 0)):
                return
            self._lines.move(sequence, RUNNING)
            self._tables.append(sequence, count)
            draft.add(sequence, min(sequence.num_left, draft.num_left))

    def _has_room_to_start(self, count: int) -> bool:
        """Whether `count` blocks are free, once PAUSED sequences have made room if they can make enough."""
        pool, paused = self._pool, self._lines.paused
        if count > pool.num_soon_free + sum(len(sequence.block_table) for sequence in paused):
            return False
        while count > pool.num_soon_free:
            self.preempt(paused[-1])
        return pool.can_allocate(count)

    def _is_in_flight(self, sequence: Sequence) -> bool:
        return sequence.last_step > self._pool.last_done_step

    def _oldest_in_flight(self, step: int) -> _InFlight:
        if not self._in_flight or self._in_flight[0].plan.step != step:
            raise ValueError(f"step {step} is not the oldest in flight")
        return self._in_flight[0]

    def _finish_step(self, step: _InFlight) -> None:
        """Take the oldest step out of those in flight and lift its fences."""
        self._in_flight.popleft()
        self._pool.finish_step(step.plan.step)

    def _check_fits_alone(self, sequence: Sequence) -> None:
        num_prompt, limits = len(sequence.prompt_token_ids), self.limits
        if not num_prompt:
            raise InvalidValue("The prompt is empty; it must have at least one token.", param="prompt")
        given = f"{num_prompt} prompt tokens + max_tokens {sequence.request.params.max_tokens} exceed"
        if sequence.max_slots >= limits.max_model_len:
            raise ContextLengthExceeded(
                f"{given} the context of {limits.max_model_len} tokens; shorten the prompt or lower max_tokens.",
                param="max_tokens",
            )
        if self._tables.num_missing(sequence, sequence.max_slots) > limits.num_blocks:
            raise KVCapacityExceeded(
                f"{given} the KV cache of {limits.num_blocks * limits.block_size} tokens; shorten the prompt, lower "
                "max_tokens, or start the server with a larger KV cache.",
                param="max_tokens",
            )

    # --- Check --------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Check all books against each other; for tests, O(sequences + blocks).

        Raises:
            AssertionError: an invariant is broken.
        """
        sequences = self._lines.check_integrity()
        assert {s.id for s in sequences} == {s.id for s in self._sequences.values()}, "lines and requests differ"
        assert self.num_running <= self._max_running, "more sequences run than may"
        for sequence in sequences:
            num_promised = sum(step.sampled.count(sequence) for step in self._in_flight)
            sequence.check_integrity(num_promised, self.limits.block_size)
        self._pool.check_integrity(sequence.block_table for sequence in sequences)
        assert self._in_flight or not self._pool.num_fenced, "blocks are fenced and no step is in flight"
