"""Masks that are made in this process, for grammars of its own user, as in the offline LLM.

An error of a grammar looks like its end: only the end of the answer is allowed, and nothing raises. So each mask and
each token is followed by a test for errors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from app.engine.execute.masks import (
    NOT_COMPILED,
    NOTHING_LEFT,
    Accepted,
    DrawMasks,
    Draws,
    MaskBuffers,
    clear_bit,
    draws_of,
    set_bit,
)
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, NO_TOKEN, RowStart, StepPlan
from app.text.grammar.cache import GrammarCache
from app.text.grammar.compile import error_of
from app.text.grammar.row_mask import Phase, RowMask

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

MAX_THREADS = 8


class _Call(NamedTuple):
    """Masks that the library writes: after a row's tokens and after each guess, from a draw on."""

    row: RowMask
    draw: int
    guess: list[int]


class LocalMasks:
    """Implements `Masks`. Engine thread only."""

    def __init__(
        self,
        grammars: GrammarCache,
        masks: DrawMasks,
        eos_token_ids: Collection[int],
        num_threads: int,
    ) -> None:
        self.rows: dict[int, RowMask] = {}
        self._grammars = grammars
        self._masks = masks
        self._draws: list[Draws] = []  # of the rows with constraints, in the present step
        self._calls: list[list[_Call]] = [[], []]  # a row may need two, one after the other
        self._num_threads = max(1, min(num_threads, MAX_THREADS))
        self._executor: LLExecutor | None = None
        self._unending = np.full(masks.words.shape[1], 0xFFFF_FFFF, np.uint32)
        for token_id in eos_token_ids:
            clear_bit(self._unending, token_id)

    @property
    def buffers(self) -> MaskBuffers:
        """See Masks.buffers."""
        return self._masks.buffers

    def start(self, start: RowStart) -> None:
        """See Masks.start."""
        self.rows.pop(start.row, None)
        constraint = start.sampling.constraint
        if constraint is None:
            return
        matcher = None if constraint.grammar is None else self._grammars.matcher(constraint.grammar)
        if matcher is None and constraint.grammar is not None:
            self.rows[start.row] = missing = RowMask(constraint, None, ())
            missing.failure = NOT_COMPILED
            return
        self.rows[start.row] = RowMask(constraint, matcher, start.output_token_ids, self._grammars.digits)

    def release(self, row: int) -> None:
        """See Masks.release."""
        self.rows.pop(row, None)

    def forced(self, row: int) -> Sequence[int]:
        """See Masks.forced."""
        return self.rows[row].forced()

    def fill(self, plan: StepPlan) -> bool:
        """See Masks.fill."""
        self._masks.clear()
        if not self.rows:
            self._draws = []
            return False
        self._draws = list(draws_of(plan, self.rows))
        for draws in self._draws:
            self._fill_row(self.rows[draws.row], draws.first, draws.guess)
        for calls in self._calls:
            if calls:
                self._compute(calls)
                calls.clear()
        self._allow_open_marks()
        return self._masks.has_any

    @property
    def has_constraints(self) -> bool:
        """See Masks.has_constraints."""
        return bool(self._draws)

    def accept(self, token_ids: list[int]) -> Accepted:
        """See Masks.accept."""
        accepted = Accepted(token_ids, [False] * len(token_ids), {})
        for draws in self._draws:
            self._accept_row(self.rows[draws.row], draws, accepted)
        return accepted

    def allowed(self, draw: int) -> Tensor | None:
        """See Masks.allowed."""
        return self._masks.allowed(draw)

    def wait(self) -> None:
        """See Masks.wait: all masks are there."""

    def take_complete(self) -> Sequence[tuple[int, int]]:
        """See Masks.take_complete: all was known."""
        return ()

    def _fill_row(self, row: RowMask, first: int, guess: list[int]) -> None:
        """Write the masks of one row's draws, or note what the library is to write."""
        if row.failure is not None:
            self._masks.write(first, None)
            return
        place, gate = row.place, row.gate
        for index in range(len(guess) + 1):
            draw = first + index
            if place.phase is Phase.THINKING:
                if gate.must_close(place):
                    assert gate.marks is not None
                    self._masks.write(draw, gate.marks.close_id)
                elif row.matcher is not None:
                    self._masks.words[draw] = self._unending
                    self._masks.mark(draw)
            elif row.matcher is not None:
                opens = place.phase is Phase.OUTSIDE and gate.marks is not None
                if opens and index < len(guess) and gate.after(place, guess[index]).phase is Phase.THINKING:
                    self._note(row, 0, draw, [])
                else:
                    self._note(row, 1, draw, guess[index:])
                    return
            if index < len(guess):
                place = gate.after(place, guess[index])

    def _note(self, row: RowMask, call: int, draw: int, guess: list[int]) -> None:
        """Note that the library is to write the masks from `draw` on: after the sequence's tokens, after each guess."""
        count = _matcher(row).validate_tokens(guess) if guess else 0
        self._calls[call].append(_Call(row, draw, guess[:count]))
        for index in range(draw, draw + count + 1):
            self._masks.mark(index)

    def _compute(self, calls: list[_Call]) -> None:
        import llguidance

        words = self._masks.words
        executor = self._executor = self._executor or llguidance.LLExecutor(self._num_threads)
        address, size, num_rows = words.ctypes.data, words.shape[1] * 4, len(words)
        if plain := [(_matcher(row), draw) for row, draw, guess in calls if not guess]:
            executor.unsafe_compute_mask_ptr(plain, address, size, num_rows)
        if drafts := [(_matcher(row), draw, guess) for row, draw, guess in calls if guess]:
            executor.unsafe_compute_mask_ptr_with_draft_token(drafts, address, size, num_rows)
        for row, draw, guess in calls:
            end = row.end
            row.limit(memoryview(words[draw]), end)
            for index, token_id in enumerate(guess, draw + 1):
                end = row.behind(end, token_id)
                row.limit(memoryview(words[index]), end)

    def _allow_open_marks(self) -> None:
        """Allow the mark that begins reasoning where it may come before the grammar; find errors of the masks."""
        for draws in self._draws:
            row = self.rows[draws.row]
            if row.matcher is None or row.failure is not None:
                continue
            if row.matcher.is_error():
                row.failure = error_of(row.matcher)
                self._masks.write(draws.first, None)
            elif row.place.phase is Phase.OUTSIDE and row.gate.marks is not None:
                set_bit(self._masks.words[draws.first], row.gate.marks.open_id)

    def _accept_row(self, row: RowMask, draws: Draws, accepted: Accepted) -> None:
        token_ids, guess = accepted.token_ids, draws.guess
        for index in range(len(guess) + 1):
            draw = draws.first + index
            token_id = token_ids[draw]
            if token_id == NO_TOKEN:
                return  # no logit was a number, whatever the grammar
            if token_id < 0 and row.failure is None:
                row.failure = NOTHING_LEFT
            if row.failure is None:
                row.take(token_id)
                if row.matcher is not None and row.matcher.is_error():
                    row.failure = error_of(row.matcher)
            if row.failure is not None:
                token_ids[draw] = NO_ALLOWED_TOKEN
                accepted.failures[draws.sequence_id] = row.failure
                return
            if row.is_complete:
                accepted.ends[draw] = True
                return
            if index < len(guess) and token_id != guess[index]:
                return


def _matcher(row: RowMask) -> LLMatcher:
    assert row.matcher is not None
    return row.matcher
