"""Speculation: several tokens of an answer from one step.

A sequence whose text repeats itself, or whose grammar leaves no choice about the next tokens, has draft tokens, which
are computed along with its last known token. Sampling noise is keyed by position, so the token sampled after each draft
token is the one that would be sampled there anyway, if all drafts before it are accepted. Samples are kept while they
equal the draft, and the first one that differs is kept too: the answer is the same as without speculation, bit by bit.
The rules:

1. Drafts use what is left over. Steps with prompt chunks have none; drafts stay within the step's tokens, logit rows
   and time; they take blocks only while no request waits for any, and never preempt.
2. A draft is proposed only if the tokens that it will probably gain, at the present cost of a token, are worth more
   than the seconds it adds to the step (see `proposer`), and more than the steps that run ahead without the sequence.
   Once in a while a draft is tried that is not: only a step with drafts measures their cost. Forced tokens come first
   and are not weighed, but rule 1 bounds them, too: each is certain to be gained, a later step would compute it for no
   less, and a sequence with a grammar does not run ahead.
3. Draft tokens do not count before their step is done. Accepted ones then become tokens of the answer, and count as
   computed; the slots of the rest are written again. A sequence with drafts in flight waits for that step.
4. A sequence with a step in flight proposes nothing, because its last token is not known. Beams never propose: a search
   needs the samples of all beams first. Nor does any sequence while a fault is isolated; one whose step failed backs
   off. Nothing is forced before a sequence's first step in its row, which gives its tokens to its grammar.
5. Tokens that end an answer are never proposed from its text. Tokens after the end, or after a stop string, are dropped
   with their sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many

from app.contract.engine_counts import SpeculationCounts
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.late_sequences import LateSequences
from app.engine.schedule.limits import SchedulerLimits, max_logit_rows
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.sequence import Sequence
from app.engine.schedule.speculation.forced_tokens import MAX_FORCED, ForcedTokens
from app.engine.schedule.speculation.proposer import NgramIndex, Proposer
from app.engine.schedule.step_budget import StepBudget
from app.engine.schedule.step_builder import StepPlanBuilder
from app.engine.schedule.step_cost import StepCost
from app.engine.schedule.step_plan import NOT_SAMPLED, Sample

# The cost of one more draft token, in gained tokens, before it is measured.
FIRST_COST = 0.3
# After so many steps without drafts one may be proposed at this cost.
TRY_INTERVAL = 128
TRY_COST = 0.1
# A draft token needs logits and sampling; the tokens of prompts, from which the cost of steps is learned, do not.
LOGITS_SHARE = 1.25


class Speculation:
    """Adds drafts to steps and accepts the tokens that were sampled too. Engine thread only.

    `counts` are of the drafts in steps that are done.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        queues: SequenceQueues,
        tables: BlockTables,
        budget: StepBudget,
        eos_token_ids: frozenset[int],
        forced: ForcedTokens | None = None,
        late: LateSequences | None = None,
    ) -> None:
        self.counts = SpeculationCounts()
        self._next_try = TRY_INTERVAL  # a step
        self._limits = limits
        self._queues = queues
        self._tables = tables
        self._budget = budget
        self._eos_token_ids = eos_token_ids
        self._forced = forced
        self._late = late

    def propose(self, builder: StepPlanBuilder) -> None:
        """Add drafts to `builder`, which has everything else of its step, and no chunk of a prompt."""
        if self._forced is not None and self._forced.rows:
            self._add_forced(self._forced, builder)
        if self._limits.speculative_ngram:
            self._add_ngrams(builder)

    def _add_forced(self, forced: ForcedTokens, builder: StepPlanBuilder) -> None:
        """Add the tokens that grammars leave no choice about."""
        starting = builder.starting_rows
        for chunk_index, sequence in enumerate(builder.sequences):
            row = sequence.row
            if row is None or row not in forced.rows or row in starting or not _can_draft(sequence):
                continue
            most = min(MAX_FORCED, self._num_left(sequence, builder))
            if most <= 0:
                continue
            found = forced.forced(row)[:most]
            if found and (length := self._num_that_fit(sequence, len(found), builder)):
                self._add(builder, chunk_index, tuple(found[:length]), is_forced=True)

    def _add_ngrams(self, builder: StepPlanBuilder) -> None:
        """Add what followed the last tokens of sequences earlier in their texts."""
        rate = _Rate(builder, self._budget.cost)
        for chunk_index, sequence in enumerate(builder.sequences):
            if not _can_draft(sequence) or sequence.id in builder.drafts or self._has_slow_masks(sequence):
                continue
            proposer = sequence.proposer or self._make_proposer(sequence)
            token_cost = rate.token_cost(sequence.num_scheduled)
            if builder.step >= self._next_try:
                token_cost = min(token_cost, TRY_COST)
            most = min(self._limits.speculative_ngram, self._num_left(sequence, builder))
            length = proposer.length(token_cost, most, sequence.num_tokens)
            if not length or proposer.gain(length) <= self._limits.run_ahead:
                continue
            found = proposer.propose(length)
            if found and (length := self._num_that_fit(sequence, len(found), builder)):
                self._add(builder, chunk_index, found[:length])
                rate.add(proposer.gain(length), length * token_cost)

    def _has_slow_masks(self, sequence: Sequence) -> bool:
        return self._late is not None and sequence.request.grammar is not None and self._late.is_slow(sequence.id)

    def _num_left(self, sequence: Sequence, builder: StepPlanBuilder) -> int:
        """Return the most draft tokens that the step has rows for and the sequence needs."""
        num_rows = max_logit_rows(self._limits) - len(builder.sampling) - builder.num_draft_tokens
        return min(num_rows, builder.num_left, sequence.max_slots - sequence.num_scheduled)

    def _add(
        self, builder: StepPlanBuilder, chunk_index: int, token_ids: tuple[int, ...], *, is_forced: bool = False
    ) -> None:
        builder.add_draft(chunk_index, token_ids, is_forced=is_forced)
        self._next_try = builder.step + TRY_INTERVAL

    def _make_proposer(self, sequence: Sequence) -> Proposer:
        params = sequence.group.request.params
        ends = frozenset(params.stop_token_ids or ())
        if not params.ignore_eos:
            ends |= self._eos_token_ids
        sequence.proposer = Proposer(NgramIndex(sequence.prompt_token_ids, sequence.output_token_ids), ends)
        return sequence.proposer

    def _num_that_fit(self, sequence: Sequence, count: int, builder: StepPlanBuilder) -> int:
        """Return how many of `count` draft tokens fit the step's time and slots that no other sequence reads."""
        tables, start = self._tables, sequence.num_scheduled
        count = self._budget.draft_size(count, start, builder)
        if len(sequence.group.open) > 1:
            count = min(count, self._num_unshared(sequence, start + count) - start)
        missing = tables.num_missing(sequence, start + count)
        if count <= 0 or missing <= 0:
            return max(count, 0)
        pool, queues = tables.pool, self._queues
        # The next blocks of all running sequences come first.
        if queues.next_to_start is None and pool.can_allocate(missing + queues.num_seats):
            builder.write_blocks(sequence, len(sequence.block_table), tables.append(sequence, missing))
            return count
        return min(count, len(sequence.block_table) * tables.block_size - start)

    def _num_unshared(self, sequence: Sequence, num_slots: int) -> int:
        """Return how many of the first `num_slots` slots of a sequence come before its next shared block."""
        size, table = self._tables.block_size, sequence.block_table
        for index in range(sequence.num_scheduled // size, min(len(table), -(-num_slots // size))):
            if self._tables.pool.num_references(table[index]) > 1:
                return index * size
        return num_slots

    def accept_drafts(
        self, builder: StepPlanBuilder, counts: Many[int], samples: Many[Sample]
    ) -> tuple[list[int], list[tuple[Sequence, Sample]]]:
        """Return the token counts of a step's chunks without rejected drafts, and the samples without those after them.

        Sequences with drafts count what they gained; the caller appends their new tokens.
        """
        computed, accepted = list(counts), list[tuple[Sequence, Sample]]()
        for sequence, valid in valid_samples(builder, samples):
            draft = builder.drafts.get(sequence.id)
            if draft is None:
                accepted.append((sequence, valid[0]))
                continue
            if sequence.is_finished:
                continue
            num_accepted = len(valid) - 1
            accepted += [(sequence, sample) for sample in valid]
            computed[draft.chunk_index] = len(valid)
            sequence.accept(num_accepted)
            if draft.is_forced:
                self.counts.num_forced_tokens += num_accepted
            elif sequence.proposer is not None:
                sequence.proposer.learn(len(draft.token_ids), num_accepted, sequence.num_tokens)
            self.counts.num_drafts += 1
            self.counts.num_draft_tokens += len(draft.token_ids)
            self.counts.num_accepted_tokens += num_accepted
        return computed, accepted

    def back_off(self, builder: StepPlanBuilder) -> None:
        """Back off from drafts for the sequences that had some in the failed step of `builder`."""
        for draft in builder.drafts.values():
            sequence = builder.sequences[draft.chunk_index]
            if sequence.proposer is not None:
                sequence.proposer.back_off(sequence.num_tokens)


class _Rate:
    """The tokens that a step is expected to gain, and its seconds, while drafts are added to it.

    Drafts that it has already were forced, and count in full.
    """

    __slots__ = ("_cost", "_gain", "_num_attended", "_num_tokens", "_planned_s", "_seconds")

    def __init__(self, builder: StepPlanBuilder, cost: StepCost) -> None:
        self._cost = cost
        self._num_tokens = builder.num_tokens
        self._num_attended = builder.num_attended
        self._gain = float(len(builder.sampling) + builder.num_draft_tokens)
        self._planned_s = cost.predict(builder.num_tokens, builder.num_attended) if cost.is_known else 0.0
        self._seconds = self._planned_s

    def token_cost(self, start: int) -> float:
        """Return the cost of one more token, at position `start`, in gained tokens at the present rate."""
        if self._seconds <= 0.0:
            return FIRST_COST
        added_s = self._cost.predict(self._num_tokens + 1, self._num_attended + start + 1) - self._planned_s
        return LOGITS_SHARE * added_s * self._gain / self._seconds

    def add(self, gain: float, token_cost: float) -> None:
        """Add a draft that will probably gain `gain` tokens; all its tokens together cost `token_cost`."""
        self._seconds *= 1.0 + token_cost / self._gain
        self._gain += gain


def _can_draft(sequence: Sequence) -> bool:
    """Return whether the last token of a sequence in the step is known, and no search decides what follows."""
    num_known = sequence.num_prompt + len(sequence.output_token_ids)
    return sequence.num_scheduled == num_known and sequence.group.search is None


def valid_samples(builder: StepPlanBuilder, samples: Many[Sample]) -> Iterator[tuple[Sequence, Many[Sample]]]:
    """Yield the sequences that a step has sampled for, each with its valid samples: at least one.

    Those of a sequence with draft tokens are valid up to the first one that differs from its draft token or ends the
    answer, or that is the last one before `NOT_SAMPLED`. What was sampled behind it does not count.
    """
    first = 0
    while first < len(samples):
        sequence = builder.sampling[first]
        draft = builder.drafts.get(sequence.id)
        token_ids = () if draft is None else draft.token_ids
        last = first
        for token_id in token_ids:
            is_last = samples[last].token_id != token_id or samples[last].ends
            if is_last or samples[last + 1].token_id == NOT_SAMPLED:
                break
            last += 1
        yield sequence, samples[first : last + 1]
        first += 1 + len(token_ids)
