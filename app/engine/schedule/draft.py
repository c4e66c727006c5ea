"""A step while it is put together: sequences go in one by one, a plan comes out."""

from __future__ import annotations

from app.engine.schedule.plan import BlockAppend, Chunk, RowStart, StepPlan
from app.engine.schedule.rows import RowPool
from app.engine.schedule.sequence import Sequence


class StepDraft:
    """Collects the chunks of one step within its token budget. A sequence goes in at most once.

    `sequences` stand in the order of the chunks, `sampled` in the order of the logit rows; the scheduler keeps both
    while the step is in flight.
    """

    __slots__ = (
        "_block_appends",
        "_chunks",
        "_logit_rows",
        "_now",
        "_num_prompt_tokens",
        "_num_tokens",
        "_row_starts",
        "_rows",
        "_step",
        "num_left",
        "sampled",
        "sequences",
    )

    def __init__(self, step: int, now: float, max_tokens: int, rows: RowPool) -> None:
        self.num_left = max_tokens
        self.sequences: list[Sequence] = []
        self.sampled: list[Sequence] = []
        self._step = step
        self._now = now
        self._rows = rows
        self._num_tokens = 0
        self._num_prompt_tokens = 0
        self._chunks: list[Chunk] = []
        self._logit_rows: list[int] = []
        self._row_starts: list[RowStart] = []
        self._block_appends: list[BlockAppend] = []

    def add(self, sequence: Sequence, num_new_tokens: int) -> None:
        """Compute the next `num_new_tokens` of `sequence`, and sample if they reach its last token."""
        row = sequence.row
        if row is None:
            row = self._start_row(sequence)
        start = sequence.num_scheduled
        end = start + num_new_tokens
        self._chunks.append(Chunk(row, sequence.id, start, sequence.tokens(start, end)))
        self.sequences.append(sequence)
        self.num_left -= num_new_tokens
        self._num_tokens += num_new_tokens
        num_prompt = len(sequence.prompt_token_ids)
        if start < num_prompt:
            self._num_prompt_tokens += min(end, num_prompt) - start
        sequence.num_scheduled = end
        sequence.last_step = self._step
        if end == sequence.num_tokens:
            self._logit_rows.append(self._num_tokens - 1)
            self.sampled.append(sequence)
            sequence.num_tokens = end + 1

    def append_blocks(self, sequence: Sequence, block_ids: list[int]) -> None:
        """Tell the row of `sequence` of the blocks its table just gained; a row that starts hears of all of them."""
        if sequence.row is not None:
            first = len(sequence.block_table) - len(block_ids)
            self._block_appends.append(BlockAppend(sequence.row, first, tuple(block_ids)))

    def build(self) -> StepPlan | None:
        """Return the plan, or None if there is nothing to compute."""
        if not self._chunks:
            return None
        return StepPlan(
            step=self._step,
            chunks=tuple(self._chunks),
            logit_rows=tuple(self._logit_rows),
            row_starts=tuple(self._row_starts),
            block_appends=tuple(self._block_appends),
            released_rows=self._rows.pop_released(),
            num_prompt_tokens=self._num_prompt_tokens,
        )

    def _start_row(self, sequence: Sequence) -> int:
        row = sequence.row = self._rows.take()
        if sequence.first_scheduled_time is None:
            sequence.first_scheduled_time = self._now
        self._row_starts.append(
            RowStart(
                row=row,
                sequence_id=sequence.id,
                choice=sequence.choice,
                params=sequence.request.params,
                prompt_token_ids=sequence.prompt_token_ids,
                output_token_ids=tuple(sequence.output_token_ids),
            )
        )
        self._block_appends.append(BlockAppend(row, 0, tuple(sequence.block_table)))
        return row
