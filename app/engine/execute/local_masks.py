"""Masks that are made in this process, for grammars of its own user, as in the offline LLM.

An error of a grammar looks like its end: only the end of the answer is allowed, and nothing raises. So each mask and
each token is followed by a test for errors. One that others may have caused lets a row begin again (see
text/grammar/compiled).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from app.contract.grammar import Constraint
from app.engine.execute.masks import (
    NOT_COMPILED,
    NOTHING_LEFT,
    Accepted,
    AnswerEnd,
    MaskBuffers,
    RowSamples,
    SampleMasks,
    clear_bit,
    samples_of,
    set_bit,
)
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, NO_TOKEN, NOT_SAMPLED, RowStart, StepPlan
from app.text.grammar.cache import GrammarCache
from app.text.grammar.compiled import CompiledGrammar
from app.text.grammar.row_mask import Phase, RowMask

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

MAX_THREADS = 8


class _Call(NamedTuple):
    """Masks that the library writes: after a row's tokens and after each draft, from a sample on."""

    row: RowMask
    sample: int
    draft: list[int]


class LocalMasks:
    """Implements `Masks`. Engine thread only."""

    def __init__(
        self,
        grammars: GrammarCache,
        masks: SampleMasks,
        eos_token_ids: Collection[int],
        num_threads: int,
    ) -> None:
        self.rows: dict[int, RowMask] = {}
        self._compiled: dict[int, CompiledGrammar] = {}  # what the matcher of a row is of
        self._grammars = grammars
        self._masks = masks
        self._samples: list[RowSamples] = []  # of the rows with constraints, in the present step
        self._undrafted: list[int] = []  # samples whose draft tokens have no masks
        self._calls: list[list[_Call]] = [[], []]  # a row may need two, one after the other
        self._num_threads = max(1, min(num_threads, MAX_THREADS))
        self._executor: LLExecutor | None = None
        self._unending = np.full(masks.words.shape[1], 0xFFFF_FFFF, np.uint32)
        for token_id in eos_token_ids:
            clear_bit(self._unending, token_id)

    @property
    def buffers(self) -> MaskBuffers:
        return self._masks.buffers

    def start(self, start: RowStart) -> None:
        self.release(start.row)
        constraint = start.sampling.constraint
        if constraint is None:
            return
        if constraint.grammar is None:
            self.rows[start.row] = RowMask(constraint, None, start.output_token_ids)
        else:
            self._begin(start.row, constraint, start.output_token_ids)

    def release(self, row: int) -> None:
        self.rows.pop(row, None)
        self._compiled.pop(row, None)

    def forced(self, row: int) -> Sequence[int]:
        return self.rows[row].forced()

    def fill(self, plan: StepPlan) -> bool:
        self._masks.clear()
        self._samples, self._undrafted = [], []
        if not self.rows:
            return False
        self._samples += samples_of(plan, self.rows)
        for samples in self._samples:
            self._fill_row(self.rows[samples.row], samples.first, samples.draft)
        self._compute_noted()
        self._settle_all()
        self._allow_open_marks()
        return self._masks.has_any

    @property
    def has_constraints(self) -> bool:
        return bool(self._samples)

    def accept(self, token_ids: list[int]) -> Accepted:
        accepted = Accepted(token_ids, [False] * len(token_ids), {})
        for first in self._undrafted:
            token_ids[first + 1] = NOT_SAMPLED
        for samples in self._samples:
            self._accept_row(samples, accepted)
        return accepted

    def allowed(self, sample: int) -> Tensor | None:
        return self._masks.allowed(sample)

    def wait(self) -> None:
        """Do nothing: all masks are there."""

    def take_ends(self) -> Sequence[AnswerEnd]:
        """Return nothing: all was known."""
        return ()

    # --- Grammars -------------------------------------------------------------------------------------------------

    def _begin(self, row: int, constraint: Constraint, token_ids: Sequence[int], *, is_again: bool = False) -> RowMask:
        """Let a row begin, or begin again, with the tokens that it has."""
        assert constraint.grammar is not None
        compiled = self._grammars.compiled(constraint.grammar, is_again=is_again)
        matcher = None if compiled is None else compiled.matcher()
        mask = self.rows[row] = RowMask(constraint, matcher, token_ids, self._grammars.digits)
        if compiled is None:
            mask.failure = NOT_COMPILED
        else:
            self._compiled[row] = compiled
        return mask

    def _again(self, row: int, sample: int | None) -> RowMask:
        """Let a row begin again, and make its next mask for a `sample`."""
        mask = self._begin(row, self.rows[row].constraint, self.rows[row].token_ids, is_again=True)
        if sample is not None:
            self._fill_row(mask, sample, [])
            self._compute_noted()
        return mask

    def _settle(self, row: int, sample: int | None = None, *, is_new: bool = False) -> RowMask:
        """Let a row begin again until it can go on or has failed. `is_new` says that it has just begun again."""
        mask = self.rows[row]
        while mask.matcher is not None and mask.failure is None:
            compiled = self._compiled[row]
            if mask.matcher.is_error():
                mask.failure = compiled.failure_of(mask.matcher, is_new=is_new)
            if mask.failure is not None or not compiled.is_spent:
                break
            mask, is_new = self._again(row, sample), True
        return mask

    def _settle_all(self) -> None:
        """Make those masks again that a spent lexer has spoilt, or an error behind draft tokens; note what fails."""
        for samples in self._samples:
            mask = self.rows[samples.row]
            if mask.is_broken:  # first, so that all those are found whose lexers are spent
                self._compiled[samples.row].failure_of(_matcher(mask), is_new=False)
        for index, samples in enumerate(self._samples):
            mask = self.rows[samples.row]
            is_new = bool(samples.draft) and mask.matcher is not None and mask.failure is None
            is_new = is_new and (mask.is_broken or self._compiled[samples.row].is_spent)
            if is_new:  # what may only be behind its draft tokens must not end it
                self._samples[index] = samples._replace(draft=[])
                self._undrafted.append(samples.first)
                self._again(samples.row, samples.first)
            if self._settle(samples.row, samples.first, is_new=is_new).failure is not None:
                self._masks.write(samples.first, None)

    # --- Steps ----------------------------------------------------------------------------------------------------

    def _fill_row(self, row: RowMask, first: int, draft: list[int]) -> None:
        """Write the masks of one row's samples, or note what the library is to write."""
        if row.failure is not None:
            self._masks.write(first, None)
            return
        place, gate = row.place, row.gate
        for index in range(len(draft) + 1):
            sample = first + index
            if place.phase is Phase.THINKING:
                if gate.must_close(place):
                    assert gate.marks is not None
                    self._masks.write(sample, gate.marks.close_id)
                elif row.matcher is not None:
                    self._masks.words[sample] = self._unending
                    self._masks.mark(sample)
            elif row.matcher is not None:
                opens = place.phase is Phase.OUTSIDE and gate.marks is not None
                if opens and index < len(draft) and gate.after(place, draft[index]).phase is Phase.THINKING:
                    self._note(row, 0, sample, [])
                else:
                    self._note(row, 1, sample, draft[index:])
                    return
            if index < len(draft):
                place = gate.after(place, draft[index])

    def _note(self, row: RowMask, call: int, sample: int, draft: list[int]) -> None:
        """Note that the library is to write masks from `sample` on: after the row's tokens, after each draft token."""
        count = _matcher(row).validate_tokens(draft) if draft else 0
        self._calls[call].append(_Call(row, sample, draft[:count]))
        for index in range(sample, sample + count + 1):
            self._masks.mark(index)

    def _compute_noted(self) -> None:
        """Let the library write the masks that were noted."""
        for calls in self._calls:
            if calls:
                self._compute(calls)
                calls.clear()

    def _compute(self, calls: list[_Call]) -> None:
        import llguidance

        words = self._masks.words
        executor = self._executor = self._executor or llguidance.LLExecutor(self._num_threads)
        address, size, num_rows = words.ctypes.data, words.shape[1] * 4, len(words)
        if plain := [(_matcher(row), sample) for row, sample, draft in calls if not draft]:
            executor.unsafe_compute_mask_ptr(plain, address, size, num_rows)
        if drafts := [(_matcher(row), sample, draft) for row, sample, draft in calls if draft]:
            executor.unsafe_compute_mask_ptr_with_draft_token(drafts, address, size, num_rows)
        for row, sample, draft in calls:
            end = row.end
            row.limit(memoryview(words[sample]), end)
            for index, token_id in enumerate(draft, sample + 1):
                end = row.behind(end, token_id)
                row.limit(memoryview(words[index]), end)

    def _allow_open_marks(self) -> None:
        """Allow the mark that begins reasoning where it may come before the grammar."""
        for samples in self._samples:
            row = self.rows[samples.row]
            if row.matcher is None or row.failure is not None:
                continue
            if row.place.phase is Phase.OUTSIDE and row.gate.marks is not None:
                set_bit(self._masks.words[samples.first], row.gate.marks.open_id)

    def _accept_row(self, samples: RowSamples, accepted: Accepted) -> None:
        row, token_ids, draft = self.rows[samples.row], accepted.token_ids, samples.draft
        for index in range(len(draft) + 1):
            sample = samples.first + index
            token_id = token_ids[sample]
            if token_id == NO_TOKEN:
                return  # no logit was a number, whatever the grammar
            if token_id < 0 and row.failure is None:
                row.failure = NOTHING_LEFT
            if row.failure is None:
                row.take(token_id)
                row = self._settle(samples.row)
            if row.failure is not None:
                token_ids[sample] = NO_ALLOWED_TOKEN
                accepted.failures[samples.sequence_id] = row.failure
                return
            if row.is_complete:
                accepted.ends[sample] = True
                return
            if index < len(draft) and token_id != draft[index]:
                return


def _matcher(row: RowMask) -> LLMatcher:
    assert row.matcher is not None
    return row.matcher
