"""The tokens that each sample of a step may be, where grammars or reasoning budgets limit them.

A mask is an input of a sample, made from the plan before the step is computed. The samples of a sequence with draft
tokens stand together: after its last token, then after each draft token. A sample behind one whose mask forbids the
draft token gets no mask, because the sample before it cannot equal its draft token, so nothing behind counts. After the
step the sampled tokens are taken while they equal the draft, and one more: what the scheduler accepts, so nothing is
ever taken back. Where the masks behind draft tokens are not there in time the samples behind the first one are
`NOT_SAMPLED`.

`LocalMasks` makes them in this process, `WorkerMasks` in another one, for grammars of clients.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.engine.schedule.speculation.forced_tokens import ForcedTokens
from app.engine.schedule.step_plan import RowStart, StepPlan
from app.text.grammar.vocabulary import mask_words

Words = npt.NDArray[np.uint32]
NOTHING_LEFT = "The model gives no probability to any token that the grammar allows next"
NOT_COMPILED = "The grammar of the request is not compiled any more"


class Zeros(Protocol):
    """Allocates zeros in host memory, which may be pinned."""

    def __call__(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return zeros of that shape."""


class MaskBuffers(NamedTuple):
    """The masks of a step in host memory, int32: `rows_R` is 1 + the row of `masks_RW` of each sample, 0 for none."""

    masks_RW: Tensor
    rows_R: Tensor
    flat: Tensor  # the memory of `masks_RW`, and one word behind it, because kernels read two at a time

    @classmethod
    def allocate(cls, max_samples: int, vocab_size: int, zeros: Zeros = torch.zeros) -> MaskBuffers:
        """Return the buffers of steps of up to `max_samples` samples; no sample has a mask."""
        num_words = mask_words(vocab_size)
        flat = zeros(max_samples * num_words + 1, dtype=torch.int32)
        return cls(flat[:-1].view(max_samples, num_words), zeros(max_samples, dtype=torch.int32), flat)

    @property
    def num_bytes(self) -> int:
        """The bytes of the buffers."""
        return int(self.flat.nbytes + self.rows_R.nbytes)


class Accepted(NamedTuple):
    """The samples of a step after its constraints have seen them; those that are not valid are as they were sampled.

    `ends` says of each sample whether the answer ends with its token, None where that comes with `Masks.take_ends`;
    `failures` has the reasons, by sequence id, why sequences cannot go on; their samples are `NO_ALLOWED_TOKEN`.
    """

    token_ids: list[int]
    ends: list[bool | None]
    failures: dict[int, str]


class AnswerEnd(NamedTuple):
    """The end of an answer that was not known with its last token, the one with the number `num_tokens`.

    With `is_complete` its grammar allows nothing more; else it has as many tokens as it may have.
    """

    sequence_id: int
    num_tokens: int
    is_complete: bool


class RowSamples(NamedTuple):
    """The samples of one state row, from `first` on: one, and one after each draft token of `draft`."""

    row: int
    sequence_id: int
    first: int
    draft: list[int]


class SampleMasks:
    """The masks of the samples of the present step, in the buffers that the sampler reads. Engine thread only.

    Attributes:
        words: the masks, a row for each sample.
        has_any: whether some sample has one.
    """

    def __init__(self, buffers: MaskBuffers, vocab_size: int) -> None:
        self.buffers = buffers
        self.words: Words = buffers.masks_RW.numpy().view(np.uint32)
        self.has_any = False
        self._rows = buffers.rows_R.numpy()
        self._vocab_size = vocab_size

    def clear(self) -> None:
        """Let every sample be any token."""
        if self.has_any:
            self._rows[:] = 0
            self.has_any = False

    def write(self, sample: int, token_id: int | None) -> None:
        """Let a sample be one token, or none."""
        self.words[sample] = 0
        if token_id is not None:
            set_bit(self.words[sample], token_id)
        self.mark(sample)

    def mark(self, sample: int) -> None:
        """Note that the mask of a sample is written."""
        self._rows[sample] = 1 + sample
        self.has_any = True

    def allowed(self, sample: int) -> Tensor | None:
        """Return which tokens a sample may be, as booleans [V]; None if every one."""
        row = int(self._rows[sample])
        if row == 0:
            return None
        bits = np.unpackbits(self.words[row - 1].view(np.uint8), bitorder="little")[: self._vocab_size]
        return torch.from_numpy(bits).bool()


class Masks(ForcedTokens, Protocol):
    """Holds the constraints of all rows, and fills the buffers for each step. Engine thread only.

    The scheduler knows them as `ForcedTokens`: every row whose constraint has begun is in `rows`.
    """

    @property
    def buffers(self) -> MaskBuffers:
        """The masks of a step, as the sampler reads them."""

    @property
    def has_constraints(self) -> bool:
        """Whether some sample of the present step belongs to a sequence with a constraint."""

    def start(self, start: RowStart) -> None:
        """Begin the constraint of a sequence that takes a row, if it has one; it has taken its tokens so far."""

    def release(self, row: int) -> None:
        """Drop the constraint of a row."""

    def fill(self, plan: StepPlan) -> bool:
        """Write the masks of a step's samples; return whether there are any."""

    def accept(self, token_ids: list[int]) -> Accepted:
        """Let the constraints of a step that was computed take their tokens."""

    def allowed(self, sample: int) -> Tensor | None:
        """Return which tokens a sample of the present step may be, as booleans [V]; None if every one."""

    def wait(self) -> None:
        """Wait a little for masks, if there are sequences that sit steps out for theirs."""

    def take_ends(self) -> Sequence[AnswerEnd]:
        """Return the ends of answers that are known only now."""


def samples_of(plan: StepPlan, rows: Container[int]) -> Iterator[RowSamples]:
    """Yield the samples of those of a plan's sequences whose rows are in `rows`."""
    sampled, logit_rows, ids = plan.sampled, plan.logit_rows, plan.chunks.token_ids
    index, count = 0, len(sampled)
    while index < count:
        row, sequence_id = sampled[index]
        end = index + 1
        while end < count and sampled[end][0] == row:
            end += 1
        if row in rows:
            yield RowSamples(row, sequence_id, index, [ids[logit_rows[sample]] for sample in range(index + 1, end)])
        index = end


def set_bit(words: Words, token_id: int) -> None:
    """Allow a token in one mask."""
    words[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def clear_bit(words: Words, token_id: int) -> None:
    """Forbid a token in one mask."""
    words[token_id >> 5] &= np.uint32(~(1 << (token_id & 31)) & 0xFFFF_FFFF)
