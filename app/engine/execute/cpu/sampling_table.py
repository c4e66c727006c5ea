"""The sampling parameters of every state row for the native kernels, and the record that ends a step.

Only beams are left to the host sampler: a search chooses among the best tokens of all its beams.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection

import torch
from torch import Tensor

from app.contract.sampling_params import MAX_LOGPROBS
from app.engine.execute.cpu.row_penalties import PromptIds, RowPenalties
from app.engine.execute.masks import MaskBuffers
from app.engine.schedule.step_plan import Chunks, RowStart, SampleLogprobs
from app.kernels.cpu import records
from app.kernels.cpu.native_ops import Step
from app.kernels.cpu.records import Code, Matrix, Rows, SamplingSettings, sample_scratch

# The fields of a `SamplingSettings`, written at once: one by one takes three times as long, which delays new requests.
_ENTRY = struct.Struct("=QqQfffiii")
assert _ENTRY.size == ctypes.sizeof(SamplingSettings)


class SamplingTable:
    """The sampling parameters of the sequence in each state row. Engine thread only.

    `address` is that of the first row's entry; the table never moves. `num_logprobs` has the number of best tokens, for
    rows whose log-probabilities are requested.
    """

    def __init__(self, num_rows: int, eos_token_ids: Collection[int] = ()) -> None:
        self.num_logprobs: dict[int, int] = {}
        self._eos_token_ids = eos_token_ids
        self._entries = (SamplingSettings * num_rows)()
        self.address = ctypes.addressof(self._entries)
        self._penalties: dict[int, RowPenalties] = {}
        self._counting: dict[int, RowPenalties] = {}  # penalties that depend on the output
        self._prompt_ids = PromptIds()

    def write(self, start: RowStart) -> None:
        """Write the parameters of a sequence that takes a row."""
        self.release(start.row)
        sampling = start.sampling
        is_on_host = sampling.is_beam_search  # a search chooses among the best tokens of all its beams
        num_logprobs = None if is_on_host else sampling.num_logprobs
        if num_logprobs is not None:
            self.num_logprobs[start.row] = num_logprobs
        _ENTRY.pack_into(
            self._entries,
            start.row * _ENTRY.size,
            sampling.seed,
            start.choice,
            0 if is_on_host or not sampling.changes_logits else self._write_penalties(start),
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.top_k,
            -1 if num_logprobs is None else num_logprobs,
            is_on_host,
        )

    def release(self, row: int) -> None:
        """Free the penalties of a row; its entry is invalid until another sequence takes the row."""
        self.num_logprobs.pop(row, None)
        self._penalties.pop(row, None)
        self._counting.pop(row, None)

    def count_tokens(self, chunks: Chunks) -> None:
        """Count the tokens of the next step's chunks for the penalties of the tokens that this step samples."""
        if self._counting:
            first = 0
            for row, start, count in zip(chunks.rows, chunks.starts, chunks.counts, strict=True):
                if row in self._counting:
                    self._counting[row].replace_tokens(start, chunks.token_ids[first : first + count])
                first += count

    def _write_penalties(self, start: RowStart) -> int:
        """Return the address of the penalties of a sequence that has just taken a row."""
        penalties = self._penalties[start.row] = RowPenalties(start, self._eos_token_ids, self._prompt_ids)
        if start.sampling.has_penalties:
            self._counting[start.row] = penalties
        return penalties.address


class SampleRecord:
    """The record that samples a step's tokens, and their buffer: -1 for rows of the host. Engine thread only.

    A token whose row has a mask is one that the mask allows, or NO_ALLOWED_TOKEN.
    """

    def __init__(
        self,
        logits_RV: Tensor,
        logit_rows_R: Tensor,
        sampled_rows_R: Tensor,
        ids_T: Tensor,
        positions_T: Tensor,
        sampling: SamplingTable,
        masks: MaskBuffers,
    ) -> None:
        num_rows, self._width = len(logit_rows_R), logits_RV.shape[1]
        token_ids_R = torch.zeros_like(logit_rows_R)
        logprobs_RX = torch.zeros(num_rows, 1 + MAX_LOGPROBS)
        logprob_ids_RX = torch.zeros(num_rows, 1 + MAX_LOGPROBS, dtype=torch.int32)
        self._sampling, self._rows, self._token_ids = sampling, sampled_rows_R.numpy(), token_ids_R.numpy()
        self._logprobs, self._logprob_ids = logprobs_RX.numpy(), logprob_ids_RX.numpy()
        # Each thread has its own scratch, so there can be no more threads than this.
        self.max_threads = max(os.cpu_count() or 1, torch.get_num_threads())
        scratch = torch.empty(self.max_threads, sample_scratch(self._width))
        self._kept = (logits_RV, logit_rows_R, ids_T, positions_T, masks, scratch)
        fields = records.Sample(
            logits=Matrix.of(logits_RV),
            output_rows=logit_rows_R.data_ptr(),
            positions=positions_T.data_ptr(),
            ids=ids_T.data_ptr(),
            state_rows=sampled_rows_R.data_ptr(),
            settings=sampling.address,
            masks=masks.masks_RW.data_ptr(),
            mask_rows=masks.rows_R.data_ptr(),
            token_ids=token_ids_R.data_ptr(),
            logprobs=logprobs_RX.data_ptr(),
            logprob_ids=logprob_ids_RX.data_ptr(),
            scratch=scratch.data_ptr(),
            width=self._width,
            mask_words=masks.masks_RW.stride(0),
        )
        self.step = Step(Code.SAMPLE, Rows.OUTPUTS, fields, num_rows)

    def token_ids(self, count: int) -> list[int]:
        """Return the tokens that the last step sampled from its `count` rows of logits; -1: left to the host."""
        token_ids: list[int] = self._token_ids[:count].tolist()
        return token_ids

    def logprobs(self, count: int) -> dict[int, SampleLogprobs]:
        """Return, by row of logits, the log-probabilities requested with the tokens of the last step."""
        num_best = self._sampling.num_logprobs
        if not num_best:
            return {}
        rows: list[int] = self._rows[:count].tolist()
        return {index: self._logprobs_at(index, num_best[row]) for index, row in enumerate(rows) if row in num_best}

    def _logprobs_at(self, index: int, num_best: int) -> SampleLogprobs:
        end = 1 + min(num_best, self._width)
        logprob, *best = self._logprobs[index, :end].tolist()
        rank, *ids = self._logprob_ids[index, :end].tolist()
        return SampleLogprobs(logprob, rank, tuple(ids), tuple(best))
