"""The scheduler: decides what each step computes, and owns the state of every request.

The scheduler is pure: no clock, no randomness, no threads; the caller passes the time as `now`. The planner decides
what a step computes, and the result processor applies its results; the scheduler adds and ends requests and steps.

One step, with the modules on the right:

    schedule(now):
        late: sequences whose masks are not there yet; they sit the step out              late_sequences
        resumed groups take seats again, in order, while there are any                    group_starts
        under `fair`: one account may rest, and sits the step out                         shares
        for group in running, in the policy's order:                                      decodes
            a sequence with one token to compute gets it; where that takes a block        kv/block_tables
                and none is free, a victim loses all of its own                           preemption
            a sequence with more is prefilling
        unless the step is to measure decodes alone (one in 32):                          planner
            the next group and the longest-waiting prompt, if overdue: a small chunk
            in every second step: a chunk of the first prompt
            for prompt in prefilling, the shortest first:
                start waiting groups that are shorter; a chunk as long as time allows     step_budget, step_cost
            start waiting groups while seats, blocks, tokens and time last                group_starts
        if there are no chunks: draft tokens behind the decodes                           speculation
        the plan, with the copies of blocks that must come first, is in flight            step_builder
    the runner computes the plan and samples its logit rows                               execute
    update(result, now), for the oldest plan in flight:
        its fences are lifted, copied blocks can be found; the cost of steps is learned   kv, step_cost
        accepted draft tokens and the first sample that differs count, the rest do not    speculation
        each sequence gains its tokens; full blocks go into the prefix cache              step_results
        beams whose samples are all there fork and end                                    search
    or abandon(plan), where the step failed: its groups start again with their tokens

Blocks that a step in flight may still touch are fenced until that step is done; they count as soon free, so no group
is preempted for blocks that are about to be free. Nothing that a step writes can be found before that step is done, so
a failed step leaves nothing behind: its sequences start again with all their tokens as prompt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from itertools import chain, count
from typing import NamedTuple

from app.contract.admission import check_fits
from app.contract.engine_counts import PredictionAccuracy, QueueCounts
from app.contract.requests import EngineRequest
from app.engine.schedule.deadlines import Deadlines
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.kv.kv_connector import KVConnector
from app.engine.schedule.kv.prefix_cache import ChainContexts
from app.engine.schedule.kv.swap_space import Swaps
from app.engine.schedule.late_sequences import LateSequences
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.planner import Planner
from app.engine.schedule.policy import Policy
from app.engine.schedule.preemption import Preemption
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.search.beam_search import BeamSearch
from app.engine.schedule.search.forks import Forks
from app.engine.schedule.sequence import FINISHED, HOLDING, PAUSED, RUNNING, SWAPPED, Sequence
from app.engine.schedule.shares import Rests, SeatShares
from app.engine.schedule.speculation.forced_tokens import ForcedTokens
from app.engine.schedule.speculation.speculation import Speculation, valid_samples
from app.engine.schedule.step_budget import StepBudget
from app.engine.schedule.step_builder import StepPlanBuilder
from app.engine.schedule.step_cost import StepCost
from app.engine.schedule.step_plan import StepPlan, StepResult
from app.engine.schedule.step_results import ResultProcessor, StepProgress
from app.observe.shown_id import shown_id


class _InFlight(NamedTuple):
    """A step that was planned and is not done, with the sequences of its chunks and of its logit rows."""

    plan: StepPlan
    builder: StepPlanBuilder
    swaps: Swaps


class Scheduler:
    """Plans steps over paged KV blocks. Engine thread only.

    Each `schedule` that returns a plan is followed by `update` or `abandon` for it, in the order of the plans.
    `contexts` name the model: blocks computed in one context are never found in another. With `forced` the tokens that
    grammars leave no choice about are draft tokens; `late` says which sequences sit a step out for their masks.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        policy: Policy | None = None,
        eos_token_ids: Collection[int] = (),
        contexts: ChainContexts | None = None,
        connector: KVConnector | None = None,
        forced: ForcedTokens | None = None,
        late: LateSequences | None = None,
        cost: StepCost | None = None,
    ) -> None:
        self.limits = limits
        self.tables = BlockTables(limits, connector or KVConnector())
        self._policy = policy or Policy()
        self._late = late
        shares = SeatShares() if self._policy.is_by_account else None
        rests = None if shares is None else Rests(shares)
        self.budget = StepBudget(limits.max_num_batched_tokens, limits.itl_target, rests, cost)
        self.queues = SequenceQueues(limits.max_running, shares)
        self.preemption = Preemption(self.queues, self.tables, self.budget)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._contexts = contexts or ChainContexts()
        self._sequence_ids = count(1)
        self._group_ids = count(1)
        self.deadlines = Deadlines()
        self.speculation: Speculation | None = None
        if limits.speculative_ngram or forced is not None:
            ends = self._eos_token_ids
            self.speculation = Speculation(limits, self.queues, self.tables, self.budget, ends, forced, late)
        self.planner = Planner(self.queues, self.tables, self.preemption, self.budget, late)
        forks = Forks(self.tables, self.queues, self._sequence_ids)
        self._result_processor = ResultProcessor(self.queues, self.tables, forks, self.speculation)
        self._in_flight: deque[_InFlight] = deque()
        self._groups: dict[str, SequenceGroup] = {}  # unfinished ones by request id
        self.pinned: list[int] = []  # blocks, once for each pin
        self.capacity = limits.num_blocks  # blocks that requests can hold: pinned ones are not among them
        self._next_step = 1

    # --- Counts -------------------------------------------------------------------------------------------------

    @property
    def num_paused(self) -> int:
        """Requests whose readers take no tokens now, whether they still have their blocks or not."""
        return len(self._groups) - len(self.queues.running) - self.queues.num_waiting

    @property
    def counts(self) -> QueueCounts:
        """The requests by their state."""
        return QueueCounts(len(self.queues.running), self.queues.num_waiting, self.num_paused)

    def count_unfilled(self) -> None:
        """Count the empty slots of blocks in use anew, for `BlockTables.counts`. O(sequences)."""
        self.tables.count_unfilled(chain.from_iterable(group.open for group in self._groups.values()))

    @property
    def length_accuracy(self) -> PredictionAccuracy:
        """How well the policy predicts the lengths of answers; all zero for a policy without predictions."""
        predictor = self._policy.predictor
        return PredictionAccuracy() if predictor is None else predictor.accuracy

    @property
    def groups(self) -> Iterable[SequenceGroup]:
        """The unfinished requests, in the order in which they came."""
        return self._groups.values()

    def is_open(self, request_id: str) -> bool:
        """Return whether a request with this id is unfinished."""
        return request_id in self._groups

    # --- Requests -----------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> SequenceGroup:
        """Put `request` in its queue and return its group.

        Raises:
            InvalidValue: the prompt is empty, or there are fewer seats than sequences.
            ContextLengthExceeded: prompt and `max_tokens` exceed the context.
            KVCapacityExceeded: they do not fit the pool even without other requests.
            ValueError: a request with this id is not finished. In all cases nothing was changed.
        """
        if request.id in self._groups:
            raise ValueError(f"request {shown_id(request.id)} is already there")
        check_fits(
            len(request.prompt_token_ids),
            request.params,
            max_model_len=self.limits.max_model_len,
            max_num_seqs=self.queues.rows.num_rows,
            num_blocks=self.capacity,
            block_size=self.limits.block_size,
        )
        params = request.params
        group = SequenceGroup(
            id=next(self._group_ids),
            request=request,
            context=self._contexts.of(request),
            search=BeamSearch(params, self._eos_token_ids) if params.use_beam_search else None,
        )
        group.begin(self._first_sequences(group))
        group.fold()
        group.sort_key = (*self._policy.key(request), group.id)
        self._groups[request.id] = group
        self.deadlines.add(request)
        self.queues.add(group)
        if self._late is not None and request.grammar is not None:
            for sequence in group.open:
                self._late.prepare(sequence.id, group.sampling, sequence.output_token_ids, is_next=False)
        return group

    def _first_sequences(self, group: SequenceGroup) -> list[Sequence]:
        """Return the sequences of a new group: those of choices that have not ended, with the tokens that were told.

        Those without tokens come first, for their leader is to sample their first ones.
        """
        request = group.request
        first = Sequence.first_of(group, next(self._sequence_ids))
        others = range(1, request.params.num_sequences if group.search is None else 1)
        sequences = [first, *(first.fork(next(self._sequence_ids), choice) for choice in others)]
        if not request.told:
            return sequences
        found = zip(sequences, request.told, strict=True)
        opened = [(sequence, told) for sequence, told in found if not told.has_ended]
        for sequence, told in opened:
            sequence.go_on_behind(told.token_ids)
        return sorted((sequence for sequence, _ in opened), key=lambda sequence: bool(sequence.output_token_ids))

    def open_sequence(self, sequence_id: int) -> Sequence | None:
        """Return an unfinished sequence; None for other ids."""
        sequences = chain.from_iterable(group.open for group in self._groups.values())
        return next((sequence for sequence in sequences if sequence.id == sequence_id), None)

    def abort(self, request_id: str) -> SequenceGroup | None:
        """Finish all sequences of a request, in any state, and return their group; None for an unknown id."""
        group = self._groups.get(request_id)
        if group is not None:
            self.finish_group(group)
        return group

    def finish(self, sequence: Sequence) -> None:
        """End a sequence after its last token: its row and blocks are free once no step uses them. Idempotent."""
        if sequence.is_finished:
            return
        if len(sequence.group.open) == 1:
            self.finish_group(sequence.group)
        else:
            self.queues.close(sequence)
            self.tables.end(sequence)
            self._end_masks(sequence)

    def finish_group(self, group: SequenceGroup) -> None:
        """End all unfinished sequences of a request. Idempotent."""
        if group.status is FINISHED:
            return
        num_prompt = min(group.num_computed, group.num_prompt)
        self.queues.move(group, FINISHED)
        for sequence in group.open:
            sequence.is_finished = True
            self.tables.end(sequence)
            self._end_masks(sequence)
        sequences = dict.fromkeys(chain(group.sequences, group.open))
        group.end()
        del self._groups[group.request.id]
        self.deadlines.remove(group.request.id)
        num_output = sum(len(sequence.output_token_ids) for sequence in sequences)
        self._policy.finished(group.request, num_output, num_prompt)

    def _end_masks(self, sequence: Sequence) -> None:
        if self._late is not None and sequence.request.grammar is not None:
            self._late.end(sequence.id)

    def pause(self, request_id: str) -> None:
        """Stop scheduling a request; it keeps its blocks until others need them. Idempotent; unknown ids are ignored.

        A request that was preempted and has not gained a token since pauses with its next token. A token that a step
        in flight is sampling is not lost.
        """
        group = self._groups.get(request_id)
        if group is None or not group.ready:
            return
        self.queues.set_ready(group, False)
        if group.status is RUNNING and not group.is_protected:
            self.queues.move(group, PAUSED)

    def resume(self, request_id: str) -> None:
        """Schedule a paused request again, as soon as there is a seat. Idempotent; unknown ids are ignored."""
        group = self._groups.get(request_id)
        if group is not None and not group.ready:
            self.queues.set_ready(group, True)

    def restrict(self, request_ids: Iterable[str] | None) -> None:
        """Run only these requests, while a fault is being isolated; None lifts the restriction."""
        self.preemption.allowed = None if request_ids is None else frozenset(request_ids)

    def pin(self, request: EngineRequest) -> int:
        """Pin the cached blocks at the beginning of `request`'s prompt; return how many tokens they hold."""
        group = SequenceGroup(0, request, self._contexts.of(request))
        hits = self.tables.find_hits(Sequence.first_of(group, 0))
        block_ids = [hit.block_id for hit in hits if hit.is_on_device]
        self.tables.pool.share(block_ids)
        self.pinned += block_ids
        self.capacity = self.limits.num_blocks - len(set(self.pinned))
        return len(block_ids) * self.limits.block_size

    # --- Steps --------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step; None if nothing can run before a step in flight is done or something changes.

        A plan may have copies and no chunks: a group that was swapped in cannot always run in the same step.

        Raises:
            ValueError: more than `run_ahead` steps are in flight; nothing was changed.
        """
        if len(self._in_flight) > self.limits.run_ahead:
            raise ValueError(f"{len(self._in_flight)} steps are in flight, run_ahead is {self.limits.run_ahead}")
        self.tables.release_read_blocks()
        builder = StepPlanBuilder(self._next_step, now, self.budget.tokens, self.queues.rows)
        if self._late is not None:
            builder.late = self._late.late()
        self.planner.fill(builder)
        if self.speculation is not None and self.preemption.allowed is None and not builder.has_chunks:
            self.speculation.propose(builder)
        for group in builder.started:
            self.deadlines.started(group.request.id)
        swaps, loads, copies = self.tables.swap.take(), self.tables.take_loads(), self.tables.take_copies()
        if not (builder.num_tokens or copies or loads or swaps.outs or swaps.ins):
            return None
        plan = builder.build(swaps, copies, loads)
        self._next_step = self.tables.swap.step = self._next_step + 1
        self._in_flight.append(_InFlight(plan, builder, swaps))
        return plan

    def update(self, result: StepResult, now: float) -> StepProgress:
        """Apply the result of the oldest step in flight; return the sequences' new tokens and the searches that ended.

        The caller passes each sequence that is now complete to `finish`. Tokens for finished sequences are dropped.

        Raises:
            ValueError: `result` is not of the oldest step in flight, or has not one sample per logit row; nothing was
                changed.
        """
        step = self._oldest_in_flight(result.step)
        builder = step.builder
        if len(result.samples) != len(builder.sampling):
            raise ValueError(f"step {result.step}: {len(result.samples)} samples, {len(builder.sampling)} logit rows")
        self._finish_step(step, result.transfer_s, is_done=True)
        if builder.num_tokens:
            self.budget.observe(builder, result.duration_s)
        return self._result_processor.take(builder, step.plan, result)

    def groups_without_token(self, result: StepResult) -> list[SequenceGroup]:
        """Return the open groups with a sequence for which the oldest step in flight has sampled no token."""
        sampled = valid_samples(self._oldest_in_flight(result.step).builder, result.samples)
        failed = [one.group for one, samples in sampled if samples[-1].token_id < 0 and not one.is_finished]
        return list(dict.fromkeys(failed))

    def is_in_flight(self, plan: StepPlan) -> bool:
        """Return whether `plan` was neither updated nor abandoned yet."""
        return any(step.plan is plan for step in self._in_flight)

    def abandon(self, plan: StepPlan) -> list[SequenceGroup]:
        """Drop the oldest step in flight, which failed, and all later ones; return the groups that ran in the oldest.

        All running groups, and those with blocks that a dropped step was to write, start again with their tokens as
        prompt; no token is lost. Content that earlier steps computed can still be found in the prefix cache.

        Raises:
            ValueError: `plan` is not the oldest step in flight; nothing was changed.
        """
        failed = self._oldest_in_flight(plan.step)
        ran = dict.fromkeys(sequence.group for sequence in chain(failed.builder.sequences, failed.builder.sampling))
        touched = set(self.queues.running)
        while self._in_flight:
            step = self._in_flight[0]
            self._finish_step(step, 0.0, is_done=False)
            touched.update(sequence.group for sequence in step.builder.sequences)
            touched.update(step.builder.started)
            for sequence in step.builder.promised:
                sequence.retract()
            if self.speculation is not None:
                self.speculation.back_off(step.builder)
            for group in step.swaps.groups:
                if group.status is SWAPPED:
                    self.preemption.drop(group)
        for group in sorted(touched, key=lambda group: group.id):
            if group.status in HOLDING:
                self.preemption.drop(group)
        return [group for group in ran if group.status is not FINISHED]

    def _oldest_in_flight(self, step: int) -> _InFlight:
        if not self._in_flight or self._in_flight[0].plan.step != step:
            raise ValueError(f"step {step} is not the oldest in flight")
        return self._in_flight[0]

    def _finish_step(self, step: _InFlight, transfer_s: float, *, is_done: bool) -> None:
        """Take the oldest step out of those in flight and lift its fences."""
        self._in_flight.popleft()
        self.tables.pool.finish_step(step.plan.step)
        self.tables.swap.finish_step(step.plan, step.swaps, transfer_s, is_done=is_done)

    def check_integrity(self) -> None:
        """Assert that all states and counts fit together; for tests, O(sequences + blocks)."""
        groups = self.queues.check_integrity()
        assert {group.id for group in groups} == {group.id for group in self._groups.values()}, "queues differ"
        promised = Counter(sequence.id for step in self._in_flight for sequence in step.builder.promised)
        for group in groups:
            group.check_integrity(self.limits.block_size, promised)
        self.tables.check_integrity(groups, self.pinned, [step.swaps for step in self._in_flight])
        assert self._in_flight or not self.tables.pool.num_fenced, "blocks are fenced and no step is in flight"
