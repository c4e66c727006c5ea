"""One step of the model behind one call: eager here; recorded or captured forms have the same interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from app.engine.execute.batch import StepInputs
from app.models.decoder import Arena, Decoder


class StepGraph(Protocol):
    """Runs the decoder over one step's inputs. Engine thread only.

    Copies and swaps of blocks are no part of it: their number changes from step to step, so they run before it.
    """

    def run(self, inputs: StepInputs) -> Tensor:
        """Return the logits [R, V] of the step; they are overwritten by the next run."""


class EagerGraph:
    """Calls every op from Python, every time."""

    def __init__(self, decoder: Decoder, kv_cache: Sequence[tuple[Tensor, Tensor]], arena: Arena) -> None:
        self._decoder = decoder
        self._kv_cache = kv_cache
        self._arena = arena

    def run(self, inputs: StepInputs) -> Tensor:
        """See StepGraph.run."""
        self._decoder.ops.begin_step(inputs.paged)
        arena = self._arena.first(len(inputs.ids_T), len(inputs.logit_rows_R))
        return self._decoder.forward(inputs.ids_T, inputs.logit_rows_R, self._kv_cache, arena)
