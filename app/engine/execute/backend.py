"""The backends: how one device keeps weights, lays out its memory, and runs a step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from app.config import Config
from app.engine.execute.batch import BatchState
from app.engine.execute.graphs import EagerGraph, RecordedGraph, StepGraph
from app.engine.execute.kv_cache import KVLayout
from app.errors import CannotStart
from app.kernels.cpu.library import NativeLibrary, load_library
from app.kernels.cpu.native_ops import NativeOps, Recorder
from app.kernels.cpu.packers import PanelPacker, RoundedPacker, activation_dtype, query_dtype
from app.kernels.cpu.torch_ops import TorchOps
from app.kernels.ops import Ops
from app.models.decoder import Arena, Decoder
from app.models.loader import DTYPES
from app.models.parallel import ParallelContext
from app.models.rope import rope_table
from app.models.spec import ModelSpec
from app.models.weights import DecoderWeights, Packer, Plain

_log = logging.getLogger("quire.engine")

Caches = Sequence[tuple[Tensor, Tensor]]
"""Each layer's keys and values [B, K, G, H]."""


class Backend(Protocol):
    """What differs between devices. Engine thread only."""

    @property
    def packer(self) -> Packer:
        """Brings weights into the form of this backend."""

    @property
    def quantization(self) -> str | None:
        """How the weights are kept, as in the setting of that name; None where quantizing saves no memory."""

    @property
    def ops(self) -> Ops:
        """For what is done outside a step's graph: copies of blocks."""

    def kv_layout(self) -> KVLayout:
        """Return how a KV block lies in memory."""

    def make_arena(self) -> Arena:
        """Allocate the activations of the largest step."""

    def make_graph(
        self, weights: DecoderWeights, caches: Caches, batch: BatchState, arena: Arena, num_positions: int
    ) -> StepGraph:
        """Return the step, ready to run."""


class EagerBackend:
    """Torch operations called one by one: needs no compiler."""

    def __init__(self, config: Config, spec: ModelSpec) -> None:
        quantization = config.model.quantization
        self.packer: Packer = RoundedPacker(quantization) if quantization else Plain()
        self.quantization: str | None = None
        self.ops: Ops = TorchOps()
        self._config, self._spec = config, spec
        self._dtype = DTYPES[spec.dtype]

    def kv_layout(self) -> KVLayout:
        """See Backend.kv_layout.

        Raises:
            CannotStart: a KV cache of another type than the model's was asked for.
        """
        if self._config.cache.kv_cache_dtype != "auto":
            raise CannotStart(
                f"--kv-cache-dtype {self._config.cache.kv_cache_dtype} needs the native kernels, which are not there "
                "(no compiler, another kind of machine, or --enforce-eager). Use `auto`."
            )
        spec = self._spec
        return KVLayout(self._config.cache.block_size, spec.num_layers, spec.num_kv_heads, spec.head_dim, self._dtype)

    def make_arena(self) -> Arena:
        """See Backend.make_arena."""
        limits = self._config.scheduler
        return Arena.allocate(self._spec, limits.max_num_batched_tokens, limits.max_logit_rows, self._dtype)

    def make_graph(
        self, weights: DecoderWeights, caches: Caches, batch: BatchState, arena: Arena, num_positions: int
    ) -> StepGraph:
        """See Backend.make_graph."""
        rope_PH = rope_table(self._spec.rope, self._spec.head_dim, num_positions, self._dtype)
        return EagerGraph(Decoder(self._spec, weights, rope_PH, self.ops, ParallelContext()), caches, arena)


class NativeBackend:
    """Native kernels, recorded once and replayed by one call for each step."""

    # Zeros behind each row: odd widths are read in pairs, and rows at powers of two would share places of the caches.
    ROW_GAP = 32

    def __init__(self, config: Config, spec: ModelSpec, library: NativeLibrary) -> None:
        self.packer: Packer = PanelPacker(config.model.quantization)
        self.quantization = config.model.quantization
        self.ops: Ops = NativeOps(library)
        self._config, self._spec, self._library = config, spec, library
        self._dtype = DTYPES[spec.dtype]

    def kv_layout(self) -> KVLayout:
        """See Backend.kv_layout."""
        spec, is_int8 = self._spec, self._config.cache.kv_cache_dtype == "int8"
        dtype = torch.int8 if is_int8 else self._dtype
        # A head of int8 values ends in its scale, a float.
        head_dim = spec.head_dim + 4 if is_int8 else spec.head_dim
        return KVLayout(self._config.cache.block_size, spec.num_layers, spec.num_kv_heads, head_dim, dtype)

    def make_arena(self) -> Arena:
        """See Backend.make_arena."""
        limits = self._config.scheduler
        dtype = activation_dtype(self._dtype, self._config.model.quantization)
        return Arena.allocate(
            self._spec,
            limits.max_num_batched_tokens,
            limits.max_logit_rows,
            dtype,
            wide=torch.float32,
            queries=query_dtype(dtype, self.kv_layout().dtype),
            row_gap=self.ROW_GAP,
        )

    def make_graph(
        self, weights: DecoderWeights, caches: Caches, batch: BatchState, arena: Arena, num_positions: int
    ) -> StepGraph:
        """See Backend.make_graph."""
        rope_PH = rope_table(self._spec.rope, self._spec.head_dim, num_positions, torch.float32)
        recorder = Recorder(self._library)
        decoder = Decoder(self._spec, weights, rope_PH, recorder, ParallelContext())
        return RecordedGraph(decoder, recorder, caches, arena, batch.buffers)


def select_backend(config: Config, spec: ModelSpec) -> Backend:
    """Return the fastest backend that this machine and the settings allow."""
    library = None if config.model.enforce_eager else load_library()
    if library is None:
        if config.model.quantization:
            _log.warning("--quantization saves neither memory nor time without the native kernels.")
        return EagerBackend(config, spec)
    return NativeBackend(config, spec, library)
