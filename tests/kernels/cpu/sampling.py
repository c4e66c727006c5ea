"""Batches of the native sampling kernel: sampling parameters of rows, and their logits."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from app.contract.sampling_params import MAX_LOGPROBS, SamplingParams
from app.engine.execute.masks import MaskBuffers
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import RowStart
from app.kernels.cpu import records
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.records import Code, Matrix, Penalties, SamplingSettings

TINIEST = 1e-5  # smaller temperatures count as this one
GUARD = 64


def write_mask(masks: MaskBuffers, row: int, allowed_V: Tensor) -> None:
    """Write the bits of a mask, and set those behind its last token, which no kernel may look at."""
    bits = np.ones(32 * masks.masks_RW.shape[1], dtype=np.uint8)
    bits[: len(allowed_V)] = allowed_V.numpy()
    masks.masks_RW[row] = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))


@dataclass
class RowParams:
    """The sampling parameters of a row."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    is_on_host: bool = False
    num_logprobs: int = -1
    penalties: Penalties | None = None

    def record(self) -> SamplingSettings:
        """The record that the kernel reads."""
        temperature = max(self.temperature, TINIEST) if self.temperature else 0.0
        penalties = None if self.penalties is None else ctypes.addressof(self.penalties)
        filters = (self.top_p, self.min_p, self.top_k)
        return SamplingSettings(
            self.seed, self.choice, penalties, temperature, *filters, self.num_logprobs, self.is_on_host
        )

    def start(self, row: int) -> RowStart:
        """The row start that the host sampler reads."""
        sampling = SamplingParams(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p, seed=self.seed
        )
        return RowStart(row, row, self.choice, RowSampling.of(sampling), (1,), ())


@dataclass
class Batch:
    """Output rows: logits [R, V], and the sampling parameters and token row of each."""

    logits_RV: Tensor
    params: Sequence[RowParams]
    positions: Sequence[int]  # of the token rows; sampled tokens are at the next position
    rows: Sequence[int] = field(default_factory=list)  # token row of each output; by default their order
    ids: Sequence[int] = ()  # of the token rows; by default 0
    allowed: Sequence[Tensor | None] = ()  # tokens that each row may be, as booleans [V]; by default all
    logprobs_RX: Tensor = field(init=False)  # of the last call of `sample`, as written by the kernel
    logprob_ids_RX: Tensor = field(init=False)

    def sample(self, library: NativeLibrary, num_threads: int = 1, num_rows: int | None = None) -> list[int]:
        """The tokens of the first `num_rows` rows (default: all), and -7 for the others."""
        count, width = self.logits_RV.shape
        output_rows = torch.tensor(self.rows or range(count), dtype=torch.int64)
        positions = torch.tensor(self.positions, dtype=torch.int64)
        state_rows = torch.arange(count).flip(0)  # one per output row, in another order
        settings = (SamplingSettings * count)(*(each.record() for each in reversed(self.params)))
        ids = torch.tensor(self.ids or [0] * len(self.positions), dtype=torch.int64)
        tokens = torch.full((count,), -7)
        self.logprobs_RX = torch.full((count, 1 + MAX_LOGPROBS), math.nan)
        self.logprob_ids_RX = torch.full((count, 1 + MAX_LOGPROBS), -7, dtype=torch.int32)
        masks = MaskBuffers.allocate(count, width)
        for row, allowed_V in enumerate(self.allowed):
            if allowed_V is not None:  # in another order than the rows
                write_mask(masks, count - 1 - row, allowed_V)
                masks.rows_R[row] = count - row
        scratch = torch.full((num_threads * -(-width // 64) * 65 + GUARD,), math.nan)
        fields = records.Sample(
            logits=Matrix.of(self.logits_RV), output_rows=output_rows.data_ptr(), positions=positions.data_ptr(),
            ids=ids.data_ptr(), state_rows=state_rows.data_ptr(), settings=ctypes.addressof(settings),
            masks=masks.masks_RW.data_ptr(), mask_rows=masks.rows_R.data_ptr(), mask_words=masks.masks_RW.stride(0),
            token_ids=tokens.data_ptr(), logprobs=self.logprobs_RX.data_ptr(),
            logprob_ids=self.logprob_ids_RX.data_ptr(), scratch=scratch.data_ptr(), width=width,
        )  # fmt: skip
        library.run(Code.SAMPLE, fields, count if num_rows is None else num_rows, num_threads)
        assert scratch[-GUARD:].isnan().all(), "wrote beyond its scratch"
        return tokens.tolist()
