"""The backend of an NVIDIA GPU: Triton kernels and cuBLAS, steps that run ahead, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch

from app.checkpoint.sizes import StoredType, weight_bytes
from app.checkpoint.spec import ModelSpec
from app.config.devices import MIN_CAPABILITY, MIN_FP8_CAPABILITY
from app.config.setting import GIB, MIB
from app.config.settings import Config
from app.contract.errors import CannotStart, ConfigurationError
from app.engine.execute.gpu.device import Device
from app.engine.execute.gpu.graphs import DeviceStep, StepGraphs
from app.engine.execute.gpu.inputs import DeviceInputs
from app.engine.execute.gpu.memory import Staging, StepMemory
from app.engine.execute.gpu.runner import GpuRunner
from app.engine.execute.gpu.sampler import DeviceSampler
from app.engine.execute.gpu.shapes import StepShapes
from app.engine.execute.gpu.warm_up import warm_up
from app.engine.execute.host_sampler import Sampler
from app.engine.execute.interfaces import Runner
from app.engine.execute.kv_cache import KVCache, KVLayout
from app.engine.execute.masks import MaskBuffers
from app.engine.execute.worker_masks import make_masks
from app.engine.schedule.limits import SchedulerLimits, max_logit_rows
from app.kernels.triton.attention.paged_attention import PagedAttention
from app.kernels.triton.fusing_ops import FusingOps
from app.kernels.triton.layers.matvec import MAX_ROWS
from app.kernels.triton.triton_ops import CublasProducts, InvariantProducts, TritonOps
from app.models.decoder import Arena, Decoder
from app.models.loader import DTYPES, Allocate
from app.models.rope import query_scales, rope_tables
from app.models.weights import DecoderWeights, Packer, PlainPacker
from app.runtime.cores import num_cores
from app.text.grammar.cache import GrammarCache

MAX_GROUP = 16
# Memory that the driver takes for a captured graph of some hundred nodes.
GRAPH_BYTES = 12 * MIB
# Left free whatever is configured: the driver loads kernels, and its context grows, when the cache is there already.
MIN_RESERVE = 512 * MIB
# Steps that run ahead, by the bytes of the weights: the host must hide its work behind steps of this length.
RUN_AHEADS = ((2 * GIB, 3), (10 * GIB, 2))


class GpuBackend:
    """Implements `Backend`. Steps of up to `MAX_ROWS` sequences that decode take fewer and larger kernels.

    `finish_kernels` waits until the kernels are compiled; idempotent.

    Raises:
        CannotStart: the GPU is too old, or the kernels do not support the model.
        ConfigurationError: the GPU does not support a setting.
    """

    is_on_host = False
    kernels = "triton"
    quantization: str | None = None

    def __init__(
        self,
        config: Config,
        spec: ModelSpec,
        device: Device,
        finish_kernels: Callable[[], None] = lambda: None,
    ) -> None:
        _check(config, spec, device.capability)
        self._finish_kernels = finish_kernels
        self._config, self._spec, self._gpu = config, spec, device
        self._dtype = DTYPES[spec.dtype]
        self.device, self.pin, self.synchronize = device.torch_device, device.pin, device.synchronize
        self.allocate: Allocate = partial(torch.empty, device=self.device)
        self.packer: Packer = PlainPacker()
        limits = config.scheduler
        self.run_ahead = _run_ahead(config, spec)
        is_deterministic = config.model.deterministic
        max_context = config.model.max_model_len or spec.max_position
        attention = PagedAttention(
            self.device,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=self._dtype,
            cache_dtype=self.kv_layout().dtype,
            max_rows=limits.max_num_seqs,
            max_tokens=limits.max_num_batched_tokens,
            max_context=max_context,
            num_processors=device.num_processors,
            capability=device.capability,
            is_deterministic=is_deterministic,
        )
        self._shapes = StepShapes(
            limits.max_num_seqs, limits.max_num_batched_tokens, max_logit_rows(limits), max_context, attention.grids
        )
        self._graph_shapes = [] if config.model.enforce_eager else self._shapes.all()
        self.graph_memory = GRAPH_BYTES * len(self._graph_shapes)
        self.activation_memory = 0
        self._mixed_work = attention.mixed_work
        self.ops: TritonOps = (
            TritonOps(InvariantProducts(self.device), attention)
            if is_deterministic  # fused kernels sum in another order
            else FusingOps(CublasProducts(), attention, MAX_ROWS)
        )

    def finish_kernels(self) -> None:
        self._finish_kernels()

    def free_memory(self) -> int:
        return self._gpu.memory()[0]

    def cache_memory(self, free_bytes: int) -> int:
        """Return all but a reserve and the memory of the graphs."""
        _, total = self._gpu.memory()
        reserve = max(MIN_RESERVE, int(total * (1 - self._config.cache.gpu_memory_utilization)))
        return max(0, free_bytes - reserve - self.graph_memory)

    def kv_layout(self) -> KVLayout:
        spec, is_fp8 = self._spec, self._config.cache.kv_cache_dtype == "fp8"
        dtype = torch.float8_e4m3fn if is_fp8 else self._dtype
        return KVLayout(self._config.cache.block_size, spec.num_layers, spec.num_kv_heads, spec.head_dim, dtype)

    def planned_activations(self, stored_type: StoredType) -> int:
        return 0

    def prepare(self, max_model_len: int, eos_token_ids: Collection[int]) -> int:
        spec, device, limits = self._spec, self.device, self._config.scheduler
        block_size = self._config.cache.block_size
        max_seqs, max_tokens = limits.max_num_seqs, limits.max_num_batched_tokens
        self._arena = Arena.allocate(spec, max_tokens, max_logit_rows(limits), self._dtype, device=device)
        num_logit_rows = len(self._arena.logits_RV)
        max_blocks = -(-max_model_len // block_size)
        work_length = self._mixed_work.sizes.length
        self._memory = StepMemory(device, max_seqs, max_blocks, max_tokens, num_logit_rows, work_length, block_size)
        self._staging = Staging(self._gpu, self._memory.buffer)
        self._sampler = DeviceSampler(
            self._gpu,
            self._memory,
            self._staging,
            spec.vocab_size,
            num_logit_rows,
            eos_token_ids,
            can_draft=limits.speculative_ngram > 0 or limits.speculative_grammar,
        )
        self._host_sampler = Sampler(eos_token_ids)
        self._mask_buffers = MaskBuffers.allocate(num_logit_rows, spec.vocab_size, self._gpu.pinned)
        self._eos_token_ids = eos_token_ids
        self._ropes = rope_tables(spec, max_model_len + block_size, torch.float32, device)
        self._query_scale_P = query_scales(spec, max_model_len + block_size, device)
        parts = (self._arena, self._sampler, self.ops)
        tables = sum(table.nbytes for table in (*self._ropes, self._query_scale_P) if table is not None)
        return sum(part.num_bytes for part in parts) + self._memory.buffer.nbytes + tables

    def make_runner(
        self, weights: DecoderWeights, cache: KVCache, limits: SchedulerLimits, grammars: GrammarCache
    ) -> Runner:
        decoder = Decoder(self._spec, weights, self._ropes, self.ops, self._query_scale_P)
        step = DeviceStep(decoder, cache.layers, self._arena, self._memory, self._sampler)
        self._gpu.synchronize()  # weights were loaded on another stream than that of the steps
        self.finish_kernels()
        warm_up(self._gpu, step, self._staging, cache, self._shapes.warm_ups())
        return GpuRunner(
            device=self._gpu,
            staging=self._staging,
            inputs=DeviceInputs(self._memory, self._shapes, self._mixed_work, self._staging),
            sampler=self._sampler,
            host_sampler=self._host_sampler,
            steps=StepGraphs(self._gpu, step, self._memory, self._graph_shapes),
            cache=cache,
            masks=make_masks(
                grammars,
                self._mask_buffers,
                self._spec.vocab_size,
                self._eos_token_ids,
                num_cores(),
                limits.max_num_seqs,
            ),
            run_ahead=limits.run_ahead,
        )


def _check(config: Config, spec: ModelSpec, capability: tuple[int, int]) -> None:
    """Reject models and settings that a GPU of this compute capability does not support."""
    has = "{}.{}".format(*capability)
    if capability < MIN_CAPABILITY:
        raise CannotStart(
            f"This GPU has compute capability {has}; Quire needs 8.0 (Ampere) or more. Use --device cpu.",
        )
    if config.cache.kv_cache_dtype == "fp8" and capability < MIN_FP8_CAPABILITY:
        raise ConfigurationError(
            f"kv_cache_dtype fp8 needs a GPU of compute capability 8.9 or more, and this one has {has}; leave it out.",
            param="kv_cache_dtype",
        )
    if spec.head_dim % 8 or not 16 <= spec.head_dim <= 256:
        raise CannotStart(
            f"The model's heads are {spec.head_dim} wide; on a GPU they may be 16 to 256, a multiple of 8. "
            "Use --device cpu."
        )
    if spec.num_heads // spec.num_kv_heads > MAX_GROUP:
        raise CannotStart(
            f"The model has {spec.num_heads // spec.num_kv_heads} query heads for each key head; on a GPU there may be "
            f"{MAX_GROUP} at most. Use --device cpu."
        )


def _run_ahead(config: Config, spec: ModelSpec) -> int:
    limits = config.scheduler
    if limits.run_ahead is not None:
        return limits.run_ahead
    if limits.speculative_ngram:
        return 0  # draft tokens follow the last token, which must be known
    num_bytes = weight_bytes(spec, None)
    return next((depth for size, depth in RUN_AHEADS if num_bytes < size), 1)
