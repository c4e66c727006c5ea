"""Builds the plan of one step, sequence by sequence."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.swap_space import Swaps
from app.engine.schedule.queues import RowPool
from app.engine.schedule.sequence import UNKNOWN_TOKEN_ID, Sequence
from app.engine.schedule.step_plan import (
    BlockCopy,
    BlockLoad,
    Chunks,
    PooledChunk,
    RowStart,
    SampleRow,
    ScoredChunk,
    StepPlan,
    TableWrite,
)

_new = tuple.__new__  # past the named tuples' own, which is Python and takes as long as all the rest

MAX_SCORED = 64
"""The most tokens that a step scores: each needs a row of logits, which the host reads."""


class Draft(NamedTuple):
    """Draft tokens of the sequence of the chunk with this index; `is_forced`: its grammar allows no others."""

    chunk_index: int
    token_ids: tuple[int, ...]
    is_forced: bool = False


class StepPlanBuilder:
    """Collects the chunks of one step within its token budget. A sequence is added at most once.

    `sequences` are in the order of the chunks, `sampling` in that of the logit rows, `pooling` and `scoring` in those
    of the pooled and the scored chunks; the scheduler keeps them while the step is in flight. `started` are the groups
    that got their blocks in this step. `num_attended` counts the KV slots that the step's tokens read, its own
    included. `drafts` are by sequence id.
    """

    def __init__(self, step: int, now: float, max_tokens: int, rows: RowPool) -> None:
        self.step = step
        self.num_left = max_tokens
        self.num_tokens = 0
        self.num_attended = 0
        self.resting: str | None = None  # the account that sits the step out
        self.late: Collection[int] = ()  # the ids of sequences that do, for their masks
        self.drafts: dict[int, Draft] = {}
        self.num_draft_tokens = 0
        self.has_decodes = False  # some chunks are decodes
        self.has_chunks = False  # some chunks are not decodes
        self.limit_s: float | None = None  # seconds that the step may take, once computed
        self.sequences: list[Sequence] = []
        self.sampling: list[Sequence] = []
        self.pooling: list[Sequence] = []
        self.scoring: list[Sequence] = []
        self.num_left_to_score = MAX_SCORED
        self.started: list[SequenceGroup] = []
        self._now = now
        self._rows = rows
        self._num_prompt_tokens = 0
        self._state_rows: list[int] = []  # these five are the columns of the chunks
        self._sequence_ids: list[int] = []
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._tokens: list[int] = []
        self._logit_rows: list[int] = []
        self._sampled: list[SampleRow] = []
        self._pooled: list[PooledChunk] = []
        self._scored: list[ScoredChunk] = []
        self._row_starts: list[RowStart] = []
        self._table_writes: list[TableWrite] = []

    def add(self, sequence: Sequence, num_new_tokens: int) -> None:
        """Compute the next `num_new_tokens` of `sequence`, and sample if they reach its last token."""
        row = sequence.row
        if row is None:
            row = self._start_row(sequence)
        start = sequence.num_scheduled
        end = start + num_new_tokens
        if (pooling := sequence.request.pooling) is not None:
            carried = sequence.pooled if start else None
            self._pooled.append(PooledChunk(sequence.id, self.num_tokens, num_new_tokens, pooling.kind, carried))
            self.pooling.append(sequence)
        if sequence.num_to_score:
            self._score(sequence, start, end)
        self._state_rows.append(row)
        self._sequence_ids.append(sequence.id)
        self._starts.append(start)
        self._counts.append(num_new_tokens)
        self._tokens += sequence.tokens(start, end)
        self.sequences.append(sequence)
        self.num_left -= num_new_tokens
        self.num_tokens += num_new_tokens
        self.num_attended += num_new_tokens * (start + end + 1) // 2
        num_prompt = sequence.num_prompt
        if start >= num_prompt and num_new_tokens == 1:
            self.has_decodes = True
        else:
            self.has_chunks = True
            self._num_prompt_tokens += max(0, min(end, num_prompt) - start)
        sequence.schedule_to(end)
        sequence.last_step = sequence.group.last_step = self.step
        if end == sequence.num_tokens:
            self._sample(sequence)

    def add_next(self, sequences: list[Sequence]) -> None:
        """Compute the last token of each of these, which all have rows, and sample the next one: a fast `add`."""
        if not sequences:
            return
        step, tokens = self.step, self._tokens
        starts = []
        for sequence in sequences:
            start = sequence.schedule_last()
            starts.append(start)
            output = sequence.output_token_ids
            tokens.append(output[-1] if start == sequence.num_prompt + len(output) - 1 else UNKNOWN_TOKEN_ID)
            sequence.last_step = sequence.group.last_step = step
        first, count = self.num_tokens, len(sequences)
        self.sequences += sequences
        self.sampling += sequences
        sampled = [sequence.sample_row for sequence in sequences]
        rows, sequence_ids = zip(*sampled, strict=True)
        self._state_rows += rows
        self._sequence_ids += sequence_ids
        self._starts += starts
        self._counts += [1] * count
        self._sampled += sampled
        self._logit_rows += range(first, first + count)
        self.num_tokens += count
        self.num_left -= count
        self.num_attended += sum(starts) + count
        self.has_decodes = True

    def sample_fork(self, sequence: Sequence) -> None:
        """Sample the first token of `sequence`, a fork of the one added last, from the same logits."""
        self._start_row(sequence)
        sequence.last_step = self.step
        self._sample(sequence)

    def add_draft(self, chunk_index: int, token_ids: tuple[int, ...], *, is_forced: bool = False) -> None:
        """Compute draft tokens after the last known token of the sequence of a chunk, and sample after each of them.

        How many are accepted is not known before the step is done, so none is promised. For steps without prompts.
        """
        sequence, start = self.sequences[chunk_index], self._starts[chunk_index]
        self.drafts[sequence.id] = Draft(chunk_index, token_ids, is_forced)
        count = len(token_ids)
        self.num_draft_tokens += count
        self.num_left -= count
        self.num_tokens += count
        self.num_attended += count * (2 * start + count + 3) // 2
        sequence.retract()

    def sits_out(self, group: SequenceGroup) -> bool:
        """Return whether a running group sits the step out."""
        return group.account == self.resting or (bool(self.late) and any(one.id in self.late for one in group.open))

    @property
    def starting_rows(self) -> set[int]:
        """The state rows that get their sequences by this step."""
        return {start.row for start in self._row_starts}

    @property
    def promised(self) -> list[Sequence]:
        """The sequences whose next tokens count already, though they are not known yet."""
        if not self.drafts:
            return self.sampling
        return [sequence for sequence in self.sampling if sequence.id not in self.drafts]

    def write_blocks(self, sequence: Sequence, first: int, block_ids: list[int]) -> None:
        """Write new blocks, or copies, from index `first` on to the table of the row; a row that starts gets all."""
        if sequence.row is not None:
            self._table_writes.append(TableWrite(sequence.row, first, tuple(block_ids)))

    def build(self, swaps: Swaps, copies: tuple[BlockCopy, ...], loads: tuple[BlockLoad, ...] = ()) -> StepPlan:
        """Return the plan, which also carries `swaps`, `copies` and `loads`."""
        if self.drafts:
            self._sample_drafts()
        columns = (self._state_rows, self._sequence_ids, self._starts, self._counts, self._tokens)
        return StepPlan(
            step=self.step,
            chunks=Chunks(*map(tuple, columns)),
            logit_rows=tuple(self._logit_rows),
            sampled=tuple(self._sampled),
            row_starts=tuple(self._row_starts),
            table_writes=tuple(self._table_writes),
            released_rows=self._rows.pop_released(),
            swap_outs=swaps.outs,
            swap_ins=swaps.ins,
            copies=copies,
            loads=loads,
            num_prompt_tokens=self._num_prompt_tokens,
            num_draft_tokens=self.num_draft_tokens,
            pooled=tuple(self._pooled),
            scored=tuple(self._scored),
        )

    def _sample_drafts(self) -> None:
        """Sample sequences with drafts after each of their tokens."""
        # There are no prompts, so the index of a chunk was that of its token row.
        for chunk_index, token_ids, _ in sorted(self.drafts.values(), reverse=True):  # from the last on: no index moves
            end = sum(self._counts[: chunk_index + 1])
            self._tokens[end:end] = token_ids
            self._counts[chunk_index] += len(token_ids)
        rows = zip(self.sampling, self._sampled, self._logit_rows, strict=True)
        self.sampling, self._sampled, self._logit_rows = [], [], []
        num_before = 0
        for sequence, sample_row, logit_row in rows:
            draft = self.drafts.get(sequence.id)
            count = 1 if draft is None else 1 + len(draft.token_ids)
            first = logit_row + num_before
            self._logit_rows += range(first, first + count)
            self._sampled += [sample_row] * count
            self.sampling += [sequence] * count
            num_before += count - 1

    def _score(self, sequence: Sequence, start: int, end: int) -> None:
        """Score what follows those of the tokens from `start` to `end` - 1 that need it."""
        first, last = max(start, sequence.num_scored), min(end, sequence.num_prompt - 1)
        num_top = sequence.request.params.prompt_logprobs
        if first >= last or num_top is None:
            return
        token_ids = sequence.tokens(first + 1, last + 1)
        self._scored.append(ScoredChunk(sequence.id, self.num_tokens + first - start, token_ids, num_top))
        self.scoring.append(sequence)
        self.num_left_to_score -= len(token_ids)

    def _sample(self, sequence: Sequence) -> None:
        self._logit_rows.append(self.num_tokens - 1)
        self._sampled.append(sequence.sample_row)
        self.sampling.append(sequence)
        sequence.promise()

    def _start_row(self, sequence: Sequence) -> int:
        row = sequence.row = self._rows.take()
        sequence.sample_row = _new(SampleRow, (row, sequence.id))
        group = sequence.group
        if group.first_scheduled_time is None:
            group.first_scheduled_time = self._now
        prompt, output = sequence.prompt_token_ids, tuple(sequence.output_token_ids)
        self._row_starts.append(RowStart(row, sequence.id, sequence.choice, group.sampling, prompt, output))
        self._table_writes.append(_new(TableWrite, (row, 0, tuple(sequence.block_table))))
        return row
