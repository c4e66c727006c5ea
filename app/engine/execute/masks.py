"""The tokens that each draw of a step may be, where grammars or reasoning budgets limit them.

A mask is an input of a draw, made from the plan before the step is computed. The draws of a sequence with draft tokens
stand together: after its last token, then after each draft token. A draw behind one whose mask forbids the draft token
gets no mask, because the draw before it cannot equal its draft token, so nothing behind counts. After the step the
drawn tokens are taken while they equal the draft, and one more: what the scheduler accepts, so nothing is ever taken
back.

An error of a grammar looks like its end: only the end of the answer is allowed, and nothing raises. So each mask and
each token is followed by a test for errors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.engine.execute.row_mask import Phase, RowMask
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, NO_TOKEN, RowStart, StepPlan
from app.text.grammar.cache import GrammarCache
from app.text.grammar.compile import error_of
from app.text.grammar.vocabulary import mask_words

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

Words = npt.NDArray[np.uint32]
MAX_THREADS = 8
NOTHING_LEFT = "The model gives no probability to any token that the grammar allows next"
NOT_COMPILED = "The grammar of the request is not compiled any more"


class Zeros(Protocol):
    """Allocates zeros in host memory, which may be pinned."""

    def __call__(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return zeros of that shape."""


class MaskBuffers(NamedTuple):
    """The masks of a step in host memory, as int32: `rows_R` is 1 + the row of `masks_RW` of each draw, 0 for none."""

    masks_RW: Tensor
    rows_R: Tensor
    flat: Tensor  # the memory of `masks_RW`, and one word behind it, because kernels read two at a time

    @classmethod
    def allocate(cls, max_draws: int, vocab_size: int, zeros: Zeros = torch.zeros) -> MaskBuffers:
        """Return the buffers of steps of up to `max_draws` draws; no draw has a mask."""
        num_words = mask_words(vocab_size)
        flat = zeros(max_draws * num_words + 1, dtype=torch.int32)
        return cls(flat[:-1].view(max_draws, num_words), zeros(max_draws, dtype=torch.int32), flat)

    @property
    def num_bytes(self) -> int:
        """The bytes of the buffers."""
        return int(self.flat.nbytes + self.rows_R.nbytes)


class Accepted(NamedTuple):
    """The draws of a step after its constraints have seen them; those that are not valid are as they were drawn.

    `ends` says of each draw whether the answer ends with its token; `failures` has the reasons, by sequence id, why
    sequences cannot go on; their draws are `NO_ALLOWED_TOKEN`.
    """

    token_ids: list[int]
    ends: list[bool]
    failures: dict[int, str]


class _Draws(NamedTuple):
    """The draws of one state row, from `first` on: one, and one after each draft token of `guess`."""

    row: int
    sequence_id: int
    first: int
    guess: list[int]


class Masks:
    """Holds the constraints of all rows, and fills the buffers for each step. Engine thread only.

    It implements ForcedTokens for the scheduler: every row whose constraint has begun is in `rows`.
    """

    def __init__(
        self,
        grammars: GrammarCache,
        buffers: MaskBuffers,
        vocab_size: int,
        eos_token_ids: Collection[int],
        num_threads: int,
    ) -> None:
        self.buffers = buffers
        self._grammars = grammars
        self.rows: dict[int, RowMask] = {}
        self._draws: list[_Draws] = []  # of the rows with constraints, in the present step
        self._has_marks = False  # some draw of the last step had a mask
        self._masks: Words = buffers.masks_RW.numpy().view(np.uint32)
        self._mask_rows = buffers.rows_R.numpy()
        self._calls: list[list[tuple[LLMatcher, int, list[int]]]] = [[], []]  # a row may need two, one after the other
        self._num_threads = max(1, min(num_threads, MAX_THREADS))
        self._executor: LLExecutor | None = None
        self._vocab_size = vocab_size
        self._unending = np.full(self._masks.shape[1], 0xFFFF_FFFF, np.uint32)
        for token_id in eos_token_ids:
            _clear(self._unending, token_id)

    def start(self, start: RowStart) -> None:
        """Begin the constraint of a sequence that takes a row, if it has one; it has taken its tokens so far."""
        self.rows.pop(start.row, None)
        constraint = start.sampling.constraint
        if constraint is None:
            return
        matcher = None if constraint.grammar is None else self._grammars.matcher(constraint.grammar)
        if matcher is None and constraint.grammar is not None:
            self.rows[start.row] = missing = RowMask(constraint, None, ())
            missing.failure = NOT_COMPILED
            return
        self.rows[start.row] = RowMask(constraint, matcher, start.output_token_ids)

    def release(self, row: int) -> None:
        """Drop the constraint of a row."""
        self.rows.pop(row, None)

    def forced(self, row: int) -> Sequence[int]:
        """See ForcedTokens.forced."""
        return self.rows[row].forced()

    def fill(self, plan: StepPlan) -> bool:
        """Write the masks of a step's draws; return whether there are any."""
        if self._has_marks:
            self._mask_rows[:] = 0
            self._has_marks = False
        if not self.rows:
            self._draws = []
            return False
        self._draws = list(_draws_of(plan, self.rows))
        for draws in self._draws:
            self._fill_row(self.rows[draws.row], draws.first, draws.guess)
        for calls in self._calls:
            if calls:
                self._compute(calls)
                calls.clear()
        self._allow_open_marks()
        return self._has_marks

    @property
    def has_constraints(self) -> bool:
        """Whether some draw of the present step belongs to a sequence with a constraint."""
        return bool(self._draws)

    def accept(self, token_ids: list[int]) -> Accepted:
        """Let the constraints of a step that was computed take their tokens."""
        accepted = Accepted(token_ids, [False] * len(token_ids), {})
        for draws in self._draws:
            self._accept_row(self.rows[draws.row], draws, accepted)
        return accepted

    def allowed(self, draw: int) -> Tensor | None:
        """Return which tokens a draw of the present step may be, as booleans [V]; None if every one."""
        row = int(self._mask_rows[draw])
        if row == 0:
            return None
        bits = np.unpackbits(self._masks[row - 1].view(np.uint8), bitorder="little")[: self._vocab_size]
        return torch.from_numpy(bits).bool()

    def _fill_row(self, row: RowMask, first: int, guess: list[int]) -> None:
        """Write the masks of one row's draws, or note what the library is to write."""
        if row.failure is not None:
            self._write(first, None)
            return
        place, gate = row.place, row.gate
        for index in range(len(guess) + 1):
            draw = first + index
            if place.phase is Phase.THINKING:
                if gate.must_close(place):
                    assert gate.marks is not None
                    self._write(draw, gate.marks.close_id)
                elif row.matcher is not None:
                    self._masks[draw] = self._unending
                    self._mark(draw)
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
        assert row.matcher is not None
        count = row.matcher.validate_tokens(guess) if guess else 0
        self._calls[call].append((row.matcher, draw, guess[:count]))
        for index in range(draw, draw + count + 1):
            self._mark(index)

    def _compute(self, calls: list[tuple[LLMatcher, int, list[int]]]) -> None:
        import llguidance

        executor = self._executor = self._executor or llguidance.LLExecutor(self._num_threads)
        address, size, num_rows = self._masks.ctypes.data, self._masks.shape[1] * 4, len(self._masks)
        if plain := [(matcher, draw) for matcher, draw, guess in calls if not guess]:
            executor.unsafe_compute_mask_ptr(plain, address, size, num_rows)
        if drafts := [call for call in calls if call[2]]:
            executor.unsafe_compute_mask_ptr_with_draft_token(drafts, address, size, num_rows)

    def _allow_open_marks(self) -> None:
        """Allow the mark that begins reasoning where it may come before the grammar; find errors of the masks."""
        for draws in self._draws:
            row = self.rows[draws.row]
            if row.matcher is None or row.failure is not None:
                continue
            if row.matcher.is_error():
                row.failure = error_of(row.matcher)
                self._write(draws.first, None)
            elif row.place.phase is Phase.OUTSIDE and row.gate.marks is not None:
                _set(self._masks[draws.first], row.gate.marks.open_id)

    def _accept_row(self, row: RowMask, draws: _Draws, accepted: Accepted) -> None:
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

    def _write(self, draw: int, token_id: int | None) -> None:
        """Write a mask that allows one token, or none."""
        self._masks[draw] = 0
        if token_id is not None:
            _set(self._masks[draw], token_id)
        self._mark(draw)

    def _mark(self, draw: int) -> None:
        self._mask_rows[draw] = 1 + draw
        self._has_marks = True


def _draws_of(plan: StepPlan, rows: dict[int, RowMask]) -> Iterator[_Draws]:
    """Yield the draws of those of a plan's sequences whose rows are in `rows`."""
    sampled, logit_rows, ids = plan.sampled, plan.logit_rows, plan.chunks.token_ids
    index, count = 0, len(sampled)
    while index < count:
        row, sequence_id = sampled[index]
        end = index + 1
        while end < count and sampled[end][0] == row:
            end += 1
        if row in rows:
            yield _Draws(row, sequence_id, index, [ids[logit_rows[draw]] for draw in range(index + 1, end)])
        index = end


def _set(words: Words, token_id: int) -> None:
    words[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def _clear(words: Words, token_id: int) -> None:
    words[token_id >> 5] &= np.uint32(~(1 << (token_id & 31)) & 0xFFFF_FFFF)
