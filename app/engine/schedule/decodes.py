"""Decodes: the next tokens of answers, which every step computes.

Running sequences with one token to compute get it, in the policy's order. Where a sequence needs a block and none is
free, a victim loses its blocks (see `preemption`). A shared block is copied before a sequence writes to it.

The n answers to one prompt fork from their leader when the leader has computed the prompt, and sample their first
tokens from the same logits. When a group starts again after it lost its blocks, or goes on with what was told, others
have their own tokens and blocks; they only share those of the prompt.
"""

from __future__ import annotations

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.preemption import Preemption
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.sequence import RUNNING, Sequence
from app.engine.schedule.step_builder import StepPlanBuilder


class Decodes:
    """Puts the next tokens of answers into steps. Engine thread only."""

    def __init__(self, queues: SequenceQueues, tables: BlockTables, preemption: Preemption) -> None:
        self._queues = queues
        self._tables = tables
        self._preemption = preemption

    def plan_all(self, builder: StepPlanBuilder) -> list[Sequence]:
        """Add the decodes; return the sequences with prompt tokens to compute, in the policy's order."""
        prefilling: list[Sequence] = []
        size, run_ahead, is_open = self._tables.block_size, self._tables.run_ahead, self._preemption.allowed is None
        plain: list[Sequence] = []  # sequences that need one token and no block, as nearly always
        for group in tuple(self._queues.running):
            if group.status is not RUNNING or not (is_open or self._preemption.may_run(group)):
                continue  # it became a victim, for a group before it
            if builder.sits_out(group):
                continue
            sequence = group.open[0]
            start = sequence.num_scheduled
            if (
                len(group.open) == 1
                and start == sequence.num_tokens - 1
                and sequence.num_prompt <= start < sequence.max_slots
                and start + run_ahead < len(sequence.block_table) * size
                and sequence.row is not None
                and group.search is None
            ):
                plain.append(sequence)
                continue
            if plain:  # in the policy's order, so that none of them can be a victim any more
                builder.add_next(plain)
                plain = []
            prefilling += self.plan(group, builder)
        builder.add_next(plain)
        return prefilling

    def plan(self, group: SequenceGroup, builder: StepPlanBuilder) -> list[Sequence]:
        """Add the decodes of a group; return its sequences with more than one token to compute."""
        leader = group.open[0]
        if group.is_folded and leader.output_token_ids and leader.num_scheduled >= group.num_prompt:
            # The leader has computed the prompt, of a group that had lost its blocks or was told in part.
            for sequence in group.open[1:]:
                self._tables.copy_prompt_end(leader, sequence)
                sequence.start_at(group.num_prompt)
            group.unfold()
        prefilling, decoding = [], []
        for sequence in group.active:
            num_left = sequence.num_left
            if num_left > 1:
                prefilling.append(sequence)
            elif num_left == 1 and not self._waits_for_search(sequence):
                decoding.append(sequence)
        decoding = decoding[: builder.num_left]  # all of them, unless the budget has shrunk
        if decoding and self._grow(group, decoding, builder):
            for sequence in decoding:
                self.add(sequence, 1, builder)
        return prefilling

    def add(self, sequence: Sequence, number: int, builder: StepPlanBuilder) -> None:
        """Add `number` more tokens of a sequence; at the end of a prompt all of its group without a token sample."""
        builder.add(sequence, number)
        group = sequence.group
        if group.is_folded and sequence.num_scheduled == group.num_prompt and not sequence.output_token_ids:
            for other in group.open[1:]:
                if other.output_token_ids:  # the end of the prompt is in no block yet that could be copied
                    size = self._tables.block_size
                    other.start_at(group.num_prompt // size * size)
                    continue
                self._tables.fork(sequence, other)
                other.copy_counts(sequence)
                builder.sample_fork(other)
            group.unfold()

    def _grow(self, group: SequenceGroup, sequences: list[Sequence], builder: StepPlanBuilder) -> bool:
        """Give `sequences` their own blocks for their next tokens, from victims if needed; False if none are free."""
        tables = self._tables
        missing = [max(0, tables.num_missing(sequence, sequence.num_scheduled + 1)) for sequence in sequences]
        needed = sum(missing)
        # What the leader of a folded group computes is for all: it writes in place.
        is_shared = len(group.open) > 1 and not group.is_folded
        if is_shared:
            needed += tables.num_copies(sequences)
        if not needed:
            return True
        if not self._preemption.for_growth(group, needed):
            return False
        for sequence, number in zip(sequences, missing, strict=True):
            copied = tables.copy_on_write(sequence) if is_shared else None
            if copied is not None:
                builder.write_blocks(sequence, *copied)
            if number:
                builder.write_blocks(sequence, len(sequence.block_table), tables.append(sequence, number))
        return True

    def _waits_for_search(self, sequence: Sequence) -> bool:
        """Return whether the sequence is a beam, with no next token until all beams of its search are sampled."""
        group = sequence.group
        return group.search is not None and (sequence.id in group.samples or self._tables.is_in_flight(group))
