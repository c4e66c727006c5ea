"""One step of the model in one call: every operation from Python, or a recording of all operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from app.engine.execute.cpu.batch import StepBuffers, StepInputs
from app.engine.execute.cpu.sampling_table import SampleRecord
from app.engine.schedule.step_plan import SampleLogprobs
from app.kernels.cpu.native_ops import Recorder
from app.models.decoder import Arena, Decoder


class StepOutput(NamedTuple):
    """A step's output; the next step overwrites the logits, which may have more rows than the step samples.

    `drawn` are the tokens sampled by kernels, -1 for rows of the host sampler; None if all rows are. `logprobs` are
    those requested with the tokens of kernels, by row of logits.
    """

    logits_RV: Tensor
    drawn: list[int] | None = None
    logprobs: Mapping[int, SampleLogprobs] = {}


class HostGraph(Protocol):
    """Runs the decoder over one step's inputs. Engine thread only.

    Copies and swaps of blocks are not in the graph: their number changes from step to step, so they run before.
    """

    def run(self, inputs: StepInputs) -> StepOutput:
        """Compute a step."""


@dataclass(frozen=True, slots=True)
class EagerGraph:
    """Calls every op from Python, every time."""

    decoder: Decoder
    kv_cache: Sequence[tuple[Tensor, Tensor]]
    arena: Arena

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> StepOutput:
        """See HostGraph.run."""
        ids_T, logit_rows_R = inputs.ids_T, inputs.logit_rows_R
        self.decoder.ops.begin_step(inputs.paged)
        arena = self.arena.first(len(ids_T), len(logit_rows_R))
        return StepOutput(self.decoder.forward(ids_T, logit_rows_R, self.kv_cache, arena))


class RecordedGraph:
    """Decoder and sampling, recorded once over whole buffers; a step is one native call over as many rows as it has.

    A row is (token, position, sequence), so decodes, prompt chunks and mixtures are the same recording. The call
    releases the GIL until the step is done.
    """

    def __init__(
        self,
        decoder: Decoder,
        recorder: Recorder,
        kv_cache: Sequence[tuple[Tensor, Tensor]],
        arena: Arena,
        buffers: StepBuffers,
    ) -> None:
        recorder.begin_step(buffers.paged(0))
        self._logits_RV = decoder.forward(buffers.ids_T, buffers.logit_rows_R, kv_cache, arena)
        rows, tokens = (buffers.logit_rows_R, buffers.sampled_rows_R), (buffers.ids_T, buffers.positions_T)
        self._sample = SampleRecord(self._logits_RV, *rows, *tokens, buffers.sampling)
        recorder.steps.append(self._sample.step)
        self._program = recorder.program()

    def run(self, inputs: StepInputs) -> StepOutput:
        """See HostGraph.run."""
        num_threads = min(torch.get_num_threads(), self._sample.max_threads)
        self._program.replay(inputs.num_tokens, inputs.num_logit_rows, num_threads)
        count = inputs.num_logit_rows
        return StepOutput(self._logits_RV, self._sample.token_ids(count), self._sample.logprobs(count))
