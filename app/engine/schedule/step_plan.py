"""The plan and the result of one step: plain data between the scheduler and the model runner.

A plan holds only what changed since the last one (rows taken, blocks appended, rows released) and which new tokens to
compute, so a step over unchanged sequences is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import NamedTuple

from app.contract.requests import PoolingKind
from app.engine.schedule.row_sampling import RowSampling


class RowStart(NamedTuple):
    """A sequence takes a state row, at its start or when it starts again after a preemption.

    `output_token_ids` are the tokens generated so far (empty at first): penalties and noise positions need them.
    """

    row: int
    sequence_id: int
    choice: int
    sampling: RowSampling
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]


class TableWrite(NamedTuple):
    """`block_ids` go to the block table of `row` from index `first` on: new blocks, or copies."""

    row: int
    first: int
    block_ids: tuple[int, ...]


class BlockCopy(NamedTuple):
    """Copy block `source` to block `target`; the plan's field says which of the two is in host memory."""

    source: int
    target: int


class BlockLoad(NamedTuple):
    """Write `data`, the bytes of `block_ids` in the layout of `KVCache.import_blocks`, to these blocks."""

    block_ids: tuple[int, ...]
    data: memoryview


class Chunk(NamedTuple):
    """The new tokens of one sequence: `token_ids` are at positions `start`, `start + 1`, ...

    A token that a step in flight is still sampling is `sequence.UNKNOWN_TOKEN_ID`; with run-ahead 0 there is none. The
    last ones may be draft tokens.
    """

    row: int
    sequence_id: int
    start: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a step as columns: the planner appends numbers, and a device copies the columns as they are.

    `counts` are the numbers of tokens of the chunks, and `token_ids` the tokens of all chunks, one after the other.
    """

    rows: tuple[int, ...] = ()
    sequence_ids: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> Chunks:
        """Return the columns of `chunks`."""
        every = tuple(chunks)
        if not every:
            return cls()
        rows, sequence_ids, starts, tokens = zip(*every, strict=True)
        return cls(rows, sequence_ids, starts, tuple(map(len, tokens)), tuple(chain.from_iterable(tokens)))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks one by one; too slow for every step of all sequences."""
        first = 0
        for row, sequence_id, start, count in zip(self.rows, self.sequence_ids, self.starts, self.counts, strict=True):
            yield Chunk(row, sequence_id, start, self.token_ids[first : first + count])
            first += count


class PooledChunk(NamedTuple):
    """A chunk whose hidden states are pooled: `num_rows` token rows from `first_row` on.

    `carried` is the result of the chunks before it; None for the first one.
    """

    sequence_id: int
    first_row: int
    num_rows: int
    kind: PoolingKind
    carried: bytes | None


class ScoredChunk(NamedTuple):
    """Prompt tokens to score: `token_ids` follow the tokens of the rows from `first_row` on, one each.

    Their log-probabilities are wanted, and the `num_top` most likely tokens in their places.
    """

    sequence_id: int
    first_row: int
    token_ids: tuple[int, ...]
    num_top: int


class SampleRow(NamedTuple):
    """The sequence, and its state row, that a logit row is sampled for."""

    row: int
    sequence_id: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: what changes, what is copied, what is computed, what is sampled.

    In this order: `released_rows`, `swap_outs` (device block -> host block), `loads` (bytes -> device), `swap_ins`
    (host -> device), `copies` (device -> device), `row_starts`, `table_writes`, then the `chunks`. A plan's copies of
    one kind may go in any order among themselves.

    The tokens of all chunks, in order, form the token rows 0..num_tokens-1. `logit_rows` lists those whose logits are
    sampled, and `sampled` the sequence for each of them: the answers to one prompt sample their first tokens from the
    same token row, and a sequence with drafts samples from several rows, after its last known token and after each
    draft token. `num_prompt_tokens` of the tokens are prompt, `num_draft_tokens` draft tokens; the rest are answers,
    computed for the first time or, after a preemption, again.
    """

    step: int
    chunks: Chunks
    logit_rows: tuple[int, ...]
    sampled: tuple[SampleRow, ...]
    row_starts: tuple[RowStart, ...] = ()
    table_writes: tuple[TableWrite, ...] = ()
    released_rows: tuple[int, ...] = ()
    swap_outs: tuple[BlockCopy, ...] = ()
    swap_ins: tuple[BlockCopy, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    loads: tuple[BlockLoad, ...] = ()
    num_prompt_tokens: int = 0
    num_draft_tokens: int = 0
    pooled: tuple[PooledChunk, ...] = ()
    scored: tuple[ScoredChunk, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Token rows of this step, padding not counted."""
        return len(self.chunks.token_ids)

    @property
    def moves_blocks(self) -> bool:
        """Whether blocks are copied, swapped or loaded."""
        return bool(self.swap_outs or self.swap_ins or self.copies or self.loads)


@dataclass(frozen=True, slots=True)
class SampleLogprobs:
    """Log-probability and rank of the sampled token, and the k most likely tokens, best first."""

    logprob: float
    rank: int
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


NO_TOKEN = -1
"""Sampled where no logit of a row is a number: after NaN, nothing that the model says means anything."""
NO_ALLOWED_TOKEN = -2
"""Sampled where no token that a grammar allows has a finite logit."""
NOT_SAMPLED = -3
"""In place of the sample after a draft token where it is not known what the grammar allows: it counts no more."""


class Sample(NamedTuple):
    """The token sampled for one sequence in one step, NO_TOKEN or NO_ALLOWED_TOKEN.

    `ends` says whether its grammar ends here, None where that is known later.
    """

    sequence_id: int
    token_id: int
    logprobs: SampleLogprobs | None = None
    ends: bool | None = False


def make_samples(
    plan: StepPlan,
    token_ids: Iterable[int],
    logprobs: Iterable[SampleLogprobs | None],
    ends: Iterable[bool | None] | None = None,
) -> tuple[Sample, ...]:
    """Return the samples of a step from its sampled token ids, in their order; `ends` None: no answer ends."""
    sequence_ids = [sequence_id for _, sequence_id in plan.sampled]
    # Past Sample's own __new__, which is Python and takes as long as the scheduler for a sequence.
    columns = (sequence_ids, token_ids, logprobs, repeat(False) if ends is None else ends)
    return tuple(map(tuple.__new__, repeat(Sample), zip(*columns, strict=False)))


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of the plan with the same `step` number: one sample per logit row, in their order.

    Samples after a rejected draft token or after the end of an answer are ignored. `num_without_token` of all samples
    have NO_TOKEN or less; `failures` says why, by sequence id, where the reason is a grammar.

    `pooled` has the vector of each of the plan's pooled chunks, `scored` the packed rows of log-probabilities of each
    of its scored chunks (see packed_logprobs).

    `duration_s` is the time the device took for the chunks, `transfer_s` that for swaps and copies; 0 if not measured.
    `mask_s` is the time that the masks of the step took; None if there were none.
    """

    step: int
    samples: tuple[Sample, ...]
    duration_s: float = 0.0
    transfer_s: float = 0.0
    num_without_token: int = 0
    failures: Mapping[int, str] = field(default_factory=dict)
    mask_s: float | None = None
    pooled: tuple[bytes, ...] = ()
    scored: tuple[bytes, ...] = ()
