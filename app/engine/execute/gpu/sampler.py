"""Samples tokens on the device, with each state row's parameters, and passes them to the next step.

For penalties a row has a count for each token of the vocabulary. Beams are sampled on the host: a search chooses among
the best tokens of all its beams, which happens on the host. So are sequences with draft tokens and penalties: each of
their samples counts for the next one in the same step.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from app.contract.sampling_params import MAX_LOGPROBS
from app.engine.execute.gpu.device import Copy, Device
from app.engine.execute.gpu.memory import Staging, StepInputs, StepMemory
from app.engine.execute.masks import MaskBuffers
from app.engine.schedule.step_plan import RowStart, SampleLogprobs
from app.kernels.triton import row_layout as layout
from app.kernels.triton.rows import advance
from app.kernels.triton.sampling.logprobs import logprobs
from app.kernels.triton.sampling.penalties import apply_penalties
from app.kernels.triton.sampling.sample import sample, scratch_width
from app.models.loader import Allocate
from app.text.grammar.vocabulary import mask_words

_FIXED = struct.Struct("=iiIIfifffffiiiii")
_FIRST = layout.FLAGS
_MASK32 = 0xFFFF_FFFF
RING_SIZE = 8
"""Steps whose samples are kept: more than can be in flight."""


class Rings(NamedTuple):
    """Samples of the newest steps; X: first the sampled token's, then the best ones'."""

    tokens_KR: Tensor
    logprobs_KRX: Tensor
    logprob_ids_KRX: Tensor  # the sampled token's rank, then the best ones' ids


class OutputRings:
    """The rings on the device and their copies in host memory, which the host reads while later steps run.

    The device counts its steps, because a captured step has no parameter for its number, and writes at that index; the
    host counts too, and reads there. Engine thread only.
    """

    def __init__(self, device: Device, memory: StepMemory, staging: Staging, max_logit_rows: int) -> None:
        self._memory, self._staging = memory, staging

        def rings(zeros: Allocate) -> Rings:
            sizes = (RING_SIZE, max_logit_rows, 1 + MAX_LOGPROBS)
            tokens_KR, logprob_ids_KRX = zeros(*sizes[:2], dtype=torch.int32), zeros(*sizes, dtype=torch.int32)
            return Rings(tokens_KR, zeros(*sizes, dtype=torch.float32), logprob_ids_KRX)

        self.on_device, self._on_host = rings(partial(torch.zeros, device=device.torch_device)), rings(device.pinned)
        self._next = 0

    @property
    def num_bytes(self) -> int:
        """The bytes of the rings on the device."""
        return sum(int(ring.nbytes) for ring in self.on_device)

    def next_index(self) -> int:
        """Return the ring index of the step that is about to be issued; call `correct_counter` if it is not issued."""
        index = self._next
        self._next = (index + 1) % RING_SIZE
        return index

    def correct_counter(self) -> None:
        """Write the device's counter before the next step: it may have counted one step more or less than the host."""
        self._staging.write(self._memory.offsets["counter"], self._next)

    def copies(self, index: int, num_samples: int, *, with_logprobs: bool) -> list[Copy]:
        """Return the copies of a step's samples to the host that must be made before they are read."""
        rings = range(3 if with_logprobs else 1)
        return [(self.on_device[ring][index, :num_samples], self._on_host[ring][index, :num_samples]) for ring in rings]

    def tokens(self, index: int, num_samples: int) -> list[int]:
        """Return the tokens that a step sampled."""
        token_ids: list[int] = self._on_host.tokens_KR[index, :num_samples].tolist()
        return token_ids

    def logprobs(self, index: int, number: int, num_best: int) -> SampleLogprobs:
        """Return the log-probabilities of a sample, by its number in its step."""
        (logprob, *best), (rank, *ids) = (
            ring[index, number, : 1 + num_best].tolist()
            for ring in (self._on_host.logprobs_KRX, self._on_host.logprob_ids_KRX)
        )
        return SampleLogprobs(logprob, rank, tuple(ids), tuple(best))


class DeviceSampler:
    """Holds the rows' parameters and samples. Engine thread only; `sample` is work for `Device.run`.

    `can_draft`: a sequence may sample several tokens in one step.
    """

    def __init__(
        self,
        device: Device,
        memory: StepMemory,
        staging: Staging,
        vocab_size: int,
        max_logit_rows: int,
        eos_token_ids: Collection[int],
        *,
        can_draft: bool = False,
    ) -> None:
        self._device, self._memory, self._staging = device, memory, staging
        self._eos_token_ids, self._can_draft = tuple(eos_token_ids), can_draft
        zeros = partial(torch.zeros, device=device.torch_device)
        self.rings = OutputRings(device, memory, staging, max_logit_rows)
        self._seen_SV = zeros(memory.num_rows, vocab_size, dtype=torch.int16)
        self._adjusted_RV = zeros(max_logit_rows, vocab_size, dtype=torch.float32)
        # At a fixed address, for captured steps: `copy_masks` writes what the next step needs.
        self._masks_RW = zeros(max_logit_rows, mask_words(vocab_size), dtype=torch.int32)
        self._mask_rows_R = zeros(max_logit_rows, dtype=torch.int32)
        self._tokens_R = zeros(max_logit_rows, dtype=torch.int32)
        self._scratch_RX = zeros(max_logit_rows, scratch_width(vocab_size), dtype=torch.int32)

    @property
    def num_bytes(self) -> int:
        """The bytes of the sampler on the device."""
        masks = (self._masks_RW, self._mask_rows_R)
        tensors = (self._seen_SV, self._adjusted_RV, *masks, self._tokens_R, self._scratch_RX)
        return self.rings.num_bytes + sum(int(tensor.nbytes) for tensor in tensors)

    def start(self, start: RowStart) -> bool:
        """Write the parameters of a sequence that takes a row; return whether the host samples for that sequence."""
        sampling, first = start.sampling, self._memory.column(start.row, 0)
        endings = sampling.endings(self._eos_token_ids) if sampling.min_tokens else []
        biases = sampling.logit_bias
        needs_host = self._can_draft and sampling.has_penalties
        is_on_host = sampling.is_beam_search or needs_host or len(endings) > layout.MAX_ENDINGS
        if is_on_host:
            endings, biases = [], {}
        numbers = _fixed(start, len(biases), len(endings))
        self._staging.write_all(dict(enumerate(numbers, first + _FIRST)))
        self._staging.write_all(dict(enumerate(biases, first + layout.BIAS_IDS)))
        self._staging.write_all(dict(enumerate(map(layout.float_bits, biases.values()), first + layout.BIASES)))
        self._staging.write_all(dict(enumerate(endings, first + layout.ENDINGS)))
        if sampling.has_penalties and not is_on_host:
            self._device.run(partial(self._set_counts, start.row, *_counts(start)))
        return is_on_host

    def copy_masks(self, masks: MaskBuffers, count: int) -> None:
        """Copy the masks of the next step's first `count` samples. Work for `Device.run`; the source stays so long."""
        self._masks_RW[:count].copy_(masks.masks_RW[:count], non_blocking=True)
        self._mask_rows_R[:count].copy_(masks.rows_R[:count], non_blocking=True)

    def sample(self, logits_RV: Tensor, inputs: StepInputs) -> None:
        """Sample a token from each row of logits, and make it the last token of its state row."""
        memory, rings, count = self._memory, self.rings.on_device, len(inputs.sampled_rows_R)
        rows = (inputs.sampled_rows_R, inputs.logit_rows_R, inputs.positions_T)
        adjusted_RV, tokens_R = self._adjusted_RV[:count], self._tokens_R[:count]
        masks = (self._masks_RW, self._mask_rows_R)
        apply_penalties(logits_RV, memory.state_SW, self._seen_SV, *masks, *rows, out=adjusted_RV)
        sample(logits_RV, adjusted_RV, memory.state_SW, *rows, scratch_RX=self._scratch_RX, tokens_R=tokens_R)
        logprobs(
            logits_RV,
            tokens_R,
            memory.state_SW,
            inputs.sampled_rows_R,
            scratch_RX=self._scratch_RX,
            values_ring_KRN=rings.logprobs_KRX,
            ids_ring_KRN=rings.logprob_ids_KRX,
            counter=memory.counter,
        )
        advance(memory.state_SW, self._seen_SV, tokens_R, *rows, ring_KR=rings.tokens_KR, counter=memory.counter)

    def _set_counts(self, row: int, ids: Tensor, counts: Tensor) -> None:
        seen_V = self._seen_SV[row]
        seen_V.zero_()
        seen_V[ids.to(seen_V.device, non_blocking=True)] = counts.to(seen_V.device, non_blocking=True)


def _fixed(start: RowStart, num_biases: int, num_endings: int) -> tuple[int, ...]:
    """Return the columns from FLAGS to NUM_ENDINGS, as the bits of int32 numbers."""
    sampling = start.sampling
    top_k, top_p, min_p = sampling.top_k, sampling.top_p, sampling.min_p
    num_logprobs = -1 if sampling.is_beam_search or sampling.num_logprobs is None else sampling.num_logprobs
    is_filtered = not sampling.is_greedy and (top_k > 0 or top_p < 1.0 or min_p > 0.0)
    has_masks = sampling.constraint is not None
    flags = (
        layout.CHANGES_LOGITS * (sampling.has_penalties or num_biases > 0 or num_endings > 0 or has_masks)
        | layout.MASKS * has_masks
        | layout.PENALIZES * sampling.has_penalties
        | layout.FILTERS * is_filtered
        | layout.LOGPROBS * (num_logprobs >= 0)
    )
    packed = _FIXED.pack(
        flags, start.choice, sampling.seed & _MASK32, sampling.seed >> 32, sampling.temperature, top_k, top_p, min_p,
        sampling.repetition, sampling.presence, sampling.frequency, len(start.prompt_token_ids),
        sampling.min_tokens, num_logprobs, num_biases, num_endings,
    )  # fmt: skip
    numbers: tuple[int, ...] = struct.unpack(f"={len(packed) // 4}i", packed)
    return numbers


def _counts(start: RowStart) -> tuple[Tensor, Tensor]:
    """Return the tokens of prompt and output, and the entry of each among the counts."""
    output = Counter(start.output_token_ids)
    prompt = set(start.prompt_token_ids)
    ids = sorted(prompt | output.keys())
    most = torch.iinfo(torch.int16).max // layout.SEEN_ONCE - 1
    counts = [layout.SEEN_ONCE * min(output[id_], most) + layout.SEEN_IN_PROMPT * (id_ in prompt) for id_ in ids]
    return torch.tensor(ids, dtype=torch.int64), torch.tensor(counts, dtype=torch.int16)
