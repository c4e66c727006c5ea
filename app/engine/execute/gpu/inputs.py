"""Turns a plan into changes of the device's memory, and tracks which inputs the device already has.

In steady decode the device has all: the step before left each row's last token and position in its memory, so nothing
is sent. That holds if every sequence of a step computes the token that was sampled last, and samples the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from app.engine.execute.gpu.memory import Integers, Staging, StepMemory
from app.engine.execute.gpu.shapes import StepShape, StepShapes
from app.engine.schedule.sequence import UNKNOWN_TOKEN_ID
from app.engine.schedule.step_plan import Chunks, StepPlan, TableWrite
from app.kernels.triton.attention.work import MixedWork
from app.kernels.triton.row_layout import POSITION, TABLE, TOKEN

_UNKNOWN = -1


class DeviceInputs:
    """Lays out plans for the device. Engine thread only."""

    def __init__(self, memory: StepMemory, shapes: StepShapes, mixed_work: MixedWork, staging: Staging) -> None:
        self._memory, self.shapes, self._mixed_work, self._staging = memory, shapes, mixed_work, staging
        # The position of a row's last sampled token on the device.
        self._next_positions: npt.NDArray[np.int64] = np.full(memory.num_rows, _UNKNOWN, np.int64)
        self._sampled_rows: tuple[int, ...] = ()  # the beginning of the memory's sampled rows, ...
        self._num_sampled_rows = 0  # ... and the length of that beginning, with the zeros behind these rows

    def stage(self, plan: StepPlan) -> StepShape | None:
        """Stage a plan's changes and tokens; return the shape of the step, None if it computes nothing."""
        if self._staging.drop_runs():
            self.invalidate_inputs()
        for start in plan.row_starts:
            self._next_positions[start.row] = _UNKNOWN
        for write in plan.table_writes:
            self._write_table(write)
        if not plan.chunks:
            return None
        rows, sampled_rows = plan.chunks.rows, tuple([row for row, _ in plan.sampled])
        is_decode = sampled_rows == rows and plan.num_tokens == len(rows) and plan.logit_rows == _range(len(rows))
        return self._stage_decodes(plan.chunks) if is_decode else self._stage_mixed(plan, sampled_rows)

    def invalidate_rows(self, rows: Sequence[int]) -> None:
        """Note that the device's last tokens of these rows are not those of their sequences."""
        self._next_positions[list(rows)] = _UNKNOWN

    def invalidate_inputs(self) -> None:
        """Note that the memory's inputs, not its rows, have been overwritten."""
        self._sampled_rows, self._num_sampled_rows = (), 0

    def _stage_decodes(self, chunks: Chunks) -> StepShape:
        rows, starts = chunks.rows, chunks.starts
        indices, positions = np.array(rows), np.array(starts)
        for chunk in np.flatnonzero(self._next_positions[indices] != positions).tolist():
            token_id = chunks.token_ids[chunk]
            assert token_id != UNKNOWN_TOKEN_ID, "this token is on the device only, and its row was invalidated"
            self._staging.write(self._memory.column(rows[chunk], TOKEN), token_id)
            self._staging.write(self._memory.column(rows[chunk], POSITION), starts[chunk])
        self._next_positions[indices] = positions + 1
        shape = self.shapes.decode(len(rows), int(positions.max()) + 1)
        if rows != self._sampled_rows or shape.num_logit_rows > self._num_sampled_rows:
            self._write_padded("sampled_rows", rows, shape.num_logit_rows)
            self._sampled_rows, self._num_sampled_rows = rows, shape.num_logit_rows
        return shape

    def _stage_mixed(self, plan: StepPlan, sampled_rows: tuple[int, ...]) -> StepShape:
        chunks, num_tokens = plan.chunks, plan.num_tokens
        counts = np.array(chunks.counts, np.int32)
        ends = np.cumsum(counts, dtype=np.int32)
        offsets = np.array(chunks.starts, np.int32) - (ends - counts)
        positions = np.repeat(offsets, counts) + np.arange(num_tokens, dtype=np.int32)
        # The choices of one prompt sample from the same row: there may be more samples than tokens.
        num_rows = max(num_tokens, len(sampled_rows))
        work = self._mixed_work.of(chunks.starts, chunks.counts, self.shapes.mixed_rows(num_rows))
        shape = self.shapes.mixed(num_rows, work.num_programs)
        self._write_padded("ids", chunks.token_ids, shape.num_rows)
        self._write_padded("positions", positions, shape.num_rows, padding=-1)
        self._write_padded("state_rows", np.repeat(np.array(chunks.rows, np.int32), counts), shape.num_rows)
        for begin, numbers in work.numbers(self._mixed_work.sizes):
            self._staging.write_run(self._memory.offsets["work"] + begin, numbers)
        self._write_padded("logit_rows", plan.logit_rows, shape.num_logit_rows)
        self._write_padded("sampled_rows", sampled_rows, shape.num_logit_rows)
        self._sampled_rows, self._num_sampled_rows = sampled_rows, shape.num_logit_rows
        self._next_positions[np.array(sampled_rows, np.int64)] = positions[list(plan.logit_rows)] + 1
        if len(set(sampled_rows)) < len(sampled_rows):  # which of a row's samples are accepted is not known
            self.invalidate_rows([row for row, count in Counter(sampled_rows).items() if count > 1])
        return shape

    def _write_table(self, write: TableWrite) -> None:
        first = self._memory.column(write.row, TABLE + write.first)
        self._staging.write_all(dict(enumerate(write.block_ids, first)))

    def _write_padded(self, name: str, values: Sequence[int] | Integers, count: int, padding: int = 0) -> None:
        run = np.full(count, padding, np.int32)
        run[: len(values)] = values
        self._staging.write_run(self._memory.offsets[name], run)


@cache
def _range(count: int) -> tuple[int, ...]:
    """Return (0, 1, ... count - 1)."""
    return tuple(range(count))
