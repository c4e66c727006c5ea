"""Applies the results of a step to the sequences that were part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from itertools import chain
from typing import NamedTuple

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.search.forks import Forks
from app.engine.schedule.sequence import HOLDING, PAUSED, RUNNING, Sequence
from app.engine.schedule.speculation.speculation import Speculation
from app.engine.schedule.step_builder import StepPlanBuilder
from app.engine.schedule.step_plan import Sample, StepPlan, StepResult


class StepProgress(NamedTuple):
    """The progress of a step: tokens that sequences gained, beam searches that advanced, and those that ended.

    A sequence with accepted draft tokens gains several tokens, in order. `sequences` are those of the chunks.
    """

    gained: list[tuple[Sequence, Sample]]
    searching: list[SequenceGroup]
    searched: list[SequenceGroup]
    sequences: Many[Sequence] = ()

    @property
    def groups(self) -> Iterator[SequenceGroup]:
        """The groups that advanced; one with several sequences may come several times."""
        return chain((sequence.group for sequence, _ in self.gained), self.searching)


class ResultProcessor:
    """Applies the results of steps that are done. Engine thread only."""

    def __init__(
        self, queues: SequenceQueues, tables: BlockTables, forks: Forks, speculation: Speculation | None
    ) -> None:
        self._queues = queues
        self._tables = tables
        self._forks = forks
        self._speculation = speculation

    def take(self, builder: StepPlanBuilder, plan: StepPlan, result: StepResult) -> StepProgress:
        """Give the results of a step to its sequences, but for finished sequences and rejected draft tokens."""
        for sequence, vector in zip(builder.pooling, result.pooled, strict=True):
            sequence.pooled = vector
        for sequence, chunk, rows in zip(builder.scoring, plan.scored, result.scored, strict=True):
            sequence.score(rows, len(chunk.token_ids))
        chunks, samples = plan.chunks, result.samples
        counts: Many[int] = chunks.counts
        sampled: Iterable[tuple[Sequence, Sample]] = zip(builder.sampling, samples, strict=True)
        if builder.drafts and self._speculation is not None:
            counts, sampled = self._speculation.accept_drafts(builder, counts, samples)
        gained: list[tuple[Sequence, Sample]] = []
        searching: dict[int, SequenceGroup] = {}
        for sequence, sample in sampled:
            if sequence.is_finished:
                continue
            assert sample.sequence_id == sequence.id, "samples are not in the order of the logit rows"
            group = sequence.group
            if sequence.num_computed < sequence.num_prompt and sequence.block_table:
                sequence.computed_to(sequence.num_prompt)  # a fork: its leader computed the prompt
            if group.search is not None:
                self._collect(sequence, sample, searching)
                continue
            sequence.gain(sample.token_id)
            gained.append((sequence, sample))
            if group.is_protected:
                self._unprotect(group)
        self._note_computed(builder, chunks.starts, counts)
        advanced = [group for group in searching.values() if len(group.samples) == len(group.open)]
        searched = [group for group in advanced if self._advance(group)]
        return StepProgress(gained, advanced, searched, builder.sequences)

    def _note_computed(self, builder: StepPlanBuilder, starts: Many[int], counts: Many[int]) -> None:
        """Count the tokens of the chunks as computed, and offer full blocks to the prefix cache."""
        size = self._tables.block_size
        for sequence, start, count in zip(builder.sequences, starts, counts, strict=True):
            if sequence.block_table:  # else the sequence was preempted or finished meanwhile
                sequence.computed_to(end := start + count)
                if end >= (sequence.num_kept + 1) * size:
                    self._tables.keep(sequence)

    def _collect(self, sequence: Sequence, sample: Sample, searching: dict[int, SequenceGroup]) -> None:
        """Note a beam's sample; a beam of a group that has lost its blocks meanwhile is sampled again later."""
        group = sequence.group
        if group.status in HOLDING:
            group.samples[sequence.id] = sample
            searching[group.id] = group
        else:
            sequence.retract()

    def _advance(self, group: SequenceGroup) -> bool:
        """Advance a beam search whose beams have all been sampled; True if the search has ended."""
        has_ended = self._forks.advance(group)
        if group.is_protected:
            self._unprotect(group)
        return has_ended

    def _unprotect(self, group: SequenceGroup) -> None:
        """Let a group that gained a token be a victim again, and pause it if its readers want no more."""
        if group.status is RUNNING:
            group.is_protected = False
            group.turn_since = group.last_step
            if not group.ready:
                self._queues.move(group, PAUSED)
