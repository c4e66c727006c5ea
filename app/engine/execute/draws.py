"""What the native kernels draw tokens with: how every state row draws, and the record that ends a step.

A row that wants more than they can do (biases, penalties, a minimum length, beams) is drawn by the sampler, from its
first token to its last: the two may round differently.
"""

from __future__ import annotations

import ctypes
import os
import struct

import torch
from torch import Tensor

from app.engine.schedule.plan import RowStart
from app.kernels.cpu import records
from app.kernels.cpu.native_ops import Step
from app.kernels.cpu.records import SAMPLE_BLOCK, Code, Draw, Matrix, Rows
from app.params import SamplingParams

# Below this every draw is the best token anyway, and smaller divisors overflow float32.
MIN_TEMPERATURE = 1e-5
# The fields of a `Draw`, written at once: one by one they take three times as long, and newcomers wait for them.
_DRAW = struct.Struct("=Qqfffiixxxx")
assert _DRAW.size == ctypes.sizeof(Draw)


def is_drawn_on_host(params: SamplingParams) -> bool:
    """Whether the native kernels cannot draw for a sequence with these parameters."""
    return bool(
        params.use_beam_search
        or params.min_tokens
        or params.logit_bias
        or params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty not in (None, 1.0)
    )


class DrawTable:
    """How the sequence in each state row draws. Engine thread only."""

    def __init__(self, num_rows: int) -> None:
        self._draws = (Draw * num_rows)()

    @property
    def address(self) -> int:
        """Where the first row's entry is; the table never moves."""
        return ctypes.addressof(self._draws)

    def write(self, start: RowStart) -> None:
        """A sequence takes a row."""
        params = start.params
        temperature = 1.0 if params.temperature is None else params.temperature
        _DRAW.pack_into(
            self._draws,
            start.row * _DRAW.size,
            (params.seed or 0) & 0xFFFF_FFFF_FFFF_FFFF,
            start.choice,
            0.0 if params.is_greedy else max(temperature, MIN_TEMPERATURE),
            1.0 if params.top_p is None else params.top_p,
            params.min_p or 0.0,
            max(params.top_k or 0, 0),
            is_drawn_on_host(params),
        )


class Drawing:
    """The record that draws a step's tokens, and where they go: -1 for rows drawn on the host. Engine thread only."""

    def __init__(
        self, logits_RV: Tensor, logit_rows_R: Tensor, draw_rows_R: Tensor, positions_T: Tensor, draws: DrawTable
    ) -> None:
        token_ids_R = torch.zeros_like(logit_rows_R)
        self._token_ids = token_ids_R.numpy()
        # Each thread has its own scratch, so there can be no more of them.
        self.max_threads = max(os.cpu_count() or 1, torch.get_num_threads())
        width = logits_RV.shape[1]
        scratch = torch.empty(self.max_threads, 3, -(-width // SAMPLE_BLOCK) * SAMPLE_BLOCK)
        self._kept = (logits_RV, logit_rows_R, draw_rows_R, positions_T, draws, scratch)
        fields = records.Sample(
            logits=Matrix.of(logits_RV),
            output_rows=logit_rows_R.data_ptr(),
            positions=positions_T.data_ptr(),
            state_rows=draw_rows_R.data_ptr(),
            draws=draws.address,
            token_ids=token_ids_R.data_ptr(),
            scratch=scratch.data_ptr(),
            width=width,
        )
        self.step = Step(Code.SAMPLE, Rows.OUTPUTS, fields, len(logit_rows_R))

    def drawn(self, count: int) -> list[int]:
        """Return the tokens that the last step drew from its `count` rows of logits; -1: the host has to."""
        token_ids: list[int] = self._token_ids[:count].tolist()
        return token_ids
