"""One step of the model in one call: every operation from Python, or a recording of all operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from app.engine.execute.cpu.batch import StepBuffers, StepInputs
from app.engine.execute.cpu.sampling_table import SampleRecord
from app.kernels.cpu.native_ops import Recorder
from app.kernels.ops import pad_rows
from app.models.decoder import Arena, Decoder


class HostGraph(Protocol):
    """Runs the decoder over one step's inputs. Engine thread only.

    Copies and swaps of blocks are not in the graph: their number changes from step to step, so they run before.
    """

    @property
    def samples(self) -> SampleRecord | None:
        """The tokens that kernels sample as part of a step; None if the host samples all rows."""

    @property
    def hidden_TD(self) -> Tensor:  # noqa: N802
        """The last hidden states of the step that was run, normalized, one row for each token row or more."""

    @property
    def max_logit_rows(self) -> int:
        """The most rows of logits that one call returns."""

    def logits(self, token_rows: Sequence[int]) -> Tensor:
        """Return logits of up to `max_logit_rows` token rows of the step that was run, one row for each or more.

        They overwrite those of the step.
        """

    def run(self, inputs: StepInputs) -> Tensor:
        """Compute a step; return its logits, one row per logit row of the plan or more.

        The next step overwrites them.
        """


@dataclass(frozen=True, slots=True)
class EagerGraph:
    """Implements `HostGraph`: calls every op from Python, every time."""

    decoder: Decoder
    kv_cache: Sequence[tuple[Tensor, Tensor]]
    arena: Arena
    samples: None = None

    @property
    def hidden_TD(self) -> Tensor:  # noqa: N802
        return self.arena.hidden_TD

    @property
    def max_logit_rows(self) -> int:
        return len(self.arena.logits_RV)

    @torch.inference_mode()
    def logits(self, token_rows: Sequence[int]) -> Tensor:
        rows_R = torch.zeros(pad_rows(len(token_rows)), dtype=torch.int64)
        rows_R[: len(token_rows)] = torch.tensor(token_rows)
        return self.decoder.logits(rows_R, self.arena.first(len(self.arena.hidden_TD), len(rows_R)))

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> Tensor:
        ids_T, logit_rows_R = inputs.ids_T, inputs.logit_rows_R
        self.decoder.ops.begin_step(inputs.paged)
        arena = self.arena.first(len(ids_T), len(logit_rows_R))
        return self.decoder.forward(ids_T, logit_rows_R, self.kv_cache, arena)


class RecordedGraph:
    """Implements `HostGraph`: decoder and sampling, recorded once over whole buffers.

    A step is one native call over as many rows as it has. A row is (token, position, sequence), so decodes, prompt
    chunks and mixtures are the same recording. The call releases the GIL until the step is done.
    """

    def __init__(
        self,
        decoder: Decoder,
        recorder: Recorder,
        scorer: Recorder,
        kv_cache: Sequence[tuple[Tensor, Tensor]],
        arena: Arena,
        buffers: StepBuffers,
    ) -> None:
        recorder.begin_step(buffers.paged(0))
        self._logits_RV = decoder.forward(buffers.ids_T, buffers.logit_rows_R, kv_cache, arena)
        rows, tokens = (buffers.logit_rows_R, buffers.sampled_rows_R), (buffers.ids_T, buffers.positions_T)
        self.samples = SampleRecord(self._logits_RV, *rows, *tokens, buffers.sampling, buffers.masks)
        recorder.steps.append(self.samples.step)
        self._program = recorder.program()
        self.hidden_TD = arena.hidden_TD
        self._scored_rows_R = torch.zeros_like(buffers.logit_rows_R)
        scoring = Decoder(decoder.spec, decoder.weights, decoder.ropes, scorer)
        scoring.logits(self._scored_rows_R, arena)
        self._scoring_program = scorer.program()

    @property
    def max_logit_rows(self) -> int:
        return len(self._scored_rows_R)

    def logits(self, token_rows: Sequence[int]) -> Tensor:
        self._scored_rows_R[: len(token_rows)] = torch.tensor(token_rows)
        num_threads = min(torch.get_num_threads(), self.samples.max_threads)
        self._scoring_program.replay(0, len(token_rows), num_threads)
        return self._logits_RV

    def run(self, inputs: StepInputs) -> Tensor:
        num_threads = min(torch.get_num_threads(), self.samples.max_threads)
        self._program.replay(inputs.num_tokens, inputs.num_logit_rows, num_threads)
        return self._logits_RV
