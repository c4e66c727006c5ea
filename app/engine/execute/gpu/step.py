"""A whole step on the device, from the rows' last tokens to their next ones, over any shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from app.engine.execute.gpu.memory import StepMemory
from app.engine.execute.gpu.sampler import DeviceSampler
from app.engine.execute.gpu.shapes import StepShape
from app.kernels.triton.rows import fill_unknown, gather_decodes
from app.models.decoder import Arena, Decoder


class DeviceStep:
    """Gather, model, LM head, sample, advance. No operation depends on a value of the host, or allocates memory.

    `logits_RV` are those of the newest step. Engine thread only.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv_cache: Sequence[tuple[Tensor, Tensor]],
        arena: Arena,
        memory: StepMemory,
        sampler: DeviceSampler,
    ) -> None:
        self.logits_RV = arena.logits_RV
        self._decoder, self._kv_cache, self._arena = decoder, kv_cache, arena
        self._memory, self._sampler = memory, sampler

    @torch.inference_mode()
    def run(self, shape: StepShape) -> None:
        """Compute the step whose inputs are in the step memory. Work for `Device.run` and `Device.capture`."""
        inputs = self._memory.first(shape)
        state_SW = self._memory.state_SW
        if shape.is_decode:
            gather_decodes(
                state_SW,
                inputs.draw_rows_R,
                ids_T=inputs.ids_T,
                positions_T=inputs.positions_T,
                state_rows_T=inputs.state_rows_T,
            )
        else:
            fill_unknown(state_SW, ids_T=inputs.ids_T, state_rows_T=inputs.state_rows_T)
        self._decoder.ops.begin_step(inputs.paged)
        arena = self._arena.first(shape.num_rows, shape.num_draws)
        logits_RV = self._decoder.forward(inputs.ids_T, inputs.logit_rows_R, self._kv_cache, arena)
        self._sampler.draw(logits_RV, inputs)
