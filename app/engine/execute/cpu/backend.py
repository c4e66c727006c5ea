"""The backends of the CPU: torch operations one by one, or native kernels recorded once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from app.checkpoint.sizes import StoredType
from app.checkpoint.spec import ModelSpec
from app.config.settings import Config
from app.contract.errors import CannotStart
from app.engine.execute import memory_plan
from app.engine.execute.activation_sizes import host_activation_bytes
from app.engine.execute.cpu.batch import BatchState, StepBuffers
from app.engine.execute.cpu.graph import EagerGraph, HostGraph, RecordedGraph
from app.engine.execute.cpu.runner import CpuRunner
from app.engine.execute.cpu.thread_choice import ThreadChoice
from app.engine.execute.host_sampler import Sampler
from app.engine.execute.interfaces import Runner
from app.engine.execute.kv_cache import KVCache, KVLayout
from app.engine.execute.masks import MaskBuffers
from app.engine.execute.worker_masks import make_masks
from app.engine.schedule.limits import SchedulerLimits, max_logit_rows
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.native_ops import NativeOps, Recorder
from app.kernels.cpu.packers import PanelPacker, RoundedPacker, activation_dtype, query_dtype
from app.kernels.cpu.torch_ops import TorchOps
from app.kernels.ops import Ops, pad_rows
from app.kernels.pages import own_pages
from app.models.decoder import Arena, Decoder
from app.models.loader import DTYPES, Allocate
from app.models.rope import query_scales, rope_tables
from app.models.weights import DecoderWeights, Packer, PlainPacker
from app.text.grammar.cache import GrammarCache

Caches = Sequence[tuple[Tensor, Tensor]]
"""Each layer's keys and values [B, K, G, H]."""


class HostBackend:
    """Implements `Backend` as far as the two backends of the CPU are alike."""

    is_on_host = True
    device = torch.device("cpu")
    allocate: Allocate = staticmethod(own_pages)
    free_memory = staticmethod(memory_plan.free_memory)
    cache_memory = staticmethod(memory_plan.default_cache_bytes)
    packer: Packer
    quantization: str | None
    ops: Ops
    run_ahead = 0
    graph_memory = 0
    activation_memory = 0
    has_kernels = False

    @property
    def kernels(self) -> str:
        """Which kernels compute: the results of others may differ in their last bits."""
        return "torch"

    def __init__(self, config: Config, spec: ModelSpec) -> None:
        self._config, self._spec = config, spec
        self._dtype = DTYPES[spec.dtype]
        self._arena: Arena | None = None
        self._eos_token_ids: Collection[int] = ()

    def pin(self, tensor: Tensor) -> None:
        """Do nothing: the device is the host."""

    def synchronize(self) -> None:
        """Do nothing: work ends before its call returns."""

    def finish_kernels(self) -> None:
        """Do nothing: kernels are there before the backend is."""

    def planned_activations(self, stored_type: StoredType) -> int:
        config, spec = self._config, self._spec
        return host_activation_bytes(config, spec, self.quantization, stored_type, has_kernels=self.has_kernels)

    def prepare(self, max_model_len: int, eos_token_ids: Collection[int]) -> int:
        self._arena, self._eos_token_ids = self.make_arena(), eos_token_ids
        max_samples = pad_rows(max_logit_rows(self._config.scheduler))
        self._mask_buffers = MaskBuffers.allocate(max_samples, self._spec.vocab_size)
        return self._arena.num_bytes + self._mask_buffers.num_bytes

    def make_runner(
        self, weights: DecoderWeights, cache: KVCache, limits: SchedulerLimits, grammars: GrammarCache
    ) -> Runner:
        assert self._arena is not None, "prepare comes first"
        max_blocks = min(cache.num_blocks, -(-limits.max_model_len // limits.block_size))
        batch = BatchState(
            limits.max_num_seqs,
            max_blocks,
            limits.max_num_batched_tokens,
            limits.block_size,
            max_logit_rows(limits),
            self._eos_token_ids,
            self._mask_buffers,
        )
        graph = self.make_graph(weights, cache.layers, batch, self._arena)
        sampler, threads = Sampler(self._eos_token_ids), ThreadChoice(torch.get_num_threads())
        masks = make_masks(
            grammars,
            self._mask_buffers,
            self._spec.vocab_size,
            self._eos_token_ids,
            torch.get_num_threads(),
            limits.max_num_seqs,
        )
        return CpuRunner(batch, graph, sampler, cache, threads, masks)

    def make_arena(self) -> Arena:
        """Allocate the activations of the largest step."""
        raise NotImplementedError

    def make_graph(self, weights: DecoderWeights, caches: Caches, batch: BatchState, arena: Arena) -> HostGraph:
        """Return the step, ready to run."""
        raise NotImplementedError

    def _decoder(self, weights: DecoderWeights, buffers: StepBuffers, ops: Ops, rope_dtype: torch.dtype) -> Decoder:
        num_positions = buffers.block_tables_SB.shape[1] * buffers.block_size
        ropes = rope_tables(self._spec, num_positions, rope_dtype)
        return Decoder(self._spec, weights, ropes, ops, query_scales(self._spec, num_positions))


class EagerBackend(HostBackend):
    """Calls torch operations one by one: needs no compiler."""

    def __init__(self, config: Config, spec: ModelSpec) -> None:
        quantization = config.model.quantization
        self.packer = RoundedPacker(quantization) if quantization else PlainPacker()
        self.quantization = None
        self.ops = TorchOps()
        super().__init__(config, spec)

    def kv_layout(self) -> KVLayout:
        """Return the layout of blocks in the type of the model.

        Raises:
            CannotStart: the settings require a KV cache of another type than the model's.
        """
        if self._config.cache.kv_cache_dtype != "auto":
            raise CannotStart(
                f"--kv-cache-dtype {self._config.cache.kv_cache_dtype} needs the native kernels, which are unavailable "
                "(no compiler, another kind of machine, or --enforce-eager). Use `auto`."
            )
        spec = self._spec
        return KVLayout(self._config.cache.block_size, spec.num_layers, spec.num_kv_heads, spec.head_dim, self._dtype)

    def make_arena(self) -> Arena:
        limits = self._config.scheduler
        return Arena.allocate(self._spec, limits.max_num_batched_tokens, max_logit_rows(limits), self._dtype)

    def make_graph(self, weights: DecoderWeights, caches: Caches, batch: BatchState, arena: Arena) -> HostGraph:
        return EagerGraph(self._decoder(weights, batch.buffers, self.ops, self._dtype), caches, arena)


class NativeBackend(HostBackend):
    """Native kernels, recorded once and replayed by one call for each step."""

    # Zeros behind each row: odd widths are read in pairs, and rows at powers of two would share cache sets of the CPU.
    ROW_GAP = 32
    has_kernels = True

    def __init__(self, config: Config, spec: ModelSpec, library: NativeLibrary) -> None:
        # Who asks for another type than bfloat16 gets products of numbers of that type.
        self.packer = PanelPacker(config.model.quantization, library if spec.dtype == "bfloat16" else None)
        self.quantization = config.model.quantization
        self.ops = NativeOps(library)
        self._library = library
        super().__init__(config, spec)

    @property
    def kernels(self) -> str:
        """The instructions of the library, which decide the last bits."""
        return self._library.instruction_set

    def kv_layout(self) -> KVLayout:
        spec, is_int8 = self._spec, self._config.cache.kv_cache_dtype == "int8"
        dtype = torch.int8 if is_int8 else self._dtype
        # A head of int8 values ends in its scale, a float.
        head_dim = spec.head_dim + 4 if is_int8 else spec.head_dim
        return KVLayout(self._config.cache.block_size, spec.num_layers, spec.num_kv_heads, head_dim, dtype)

    def make_arena(self) -> Arena:
        limits = self._config.scheduler
        dtype = activation_dtype(self._dtype)
        return Arena.allocate(
            self._spec,
            limits.max_num_batched_tokens,
            max_logit_rows(limits),
            dtype,
            wide=torch.float32,
            queries=query_dtype(dtype, self.kv_layout().dtype),
            row_gap=self.ROW_GAP,
        )

    def make_graph(self, weights: DecoderWeights, caches: Caches, batch: BatchState, arena: Arena) -> HostGraph:
        recorder = Recorder(self._library)
        decoder = self._decoder(weights, batch.buffers, recorder, torch.float32)
        graph = RecordedGraph(decoder, recorder, Recorder(self._library), caches, arena, batch.buffers)
        self.activation_memory = recorder.activation_bytes
        return graph
