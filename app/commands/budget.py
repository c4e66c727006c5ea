"""The memory that a model needs: weights, activations, KV cache. From config.json or GGUF headers, without torch.

On a CPU the rules are those of the server (`engine/execute/memory_plan.py`): the KV cache gets a quarter of the free
memory that process, weights and activations leave, at most 4 GiB. On a GPU the KV cache gets all memory that weights,
activations and a reserve leave; the reserve is the fraction beyond `gpu_memory_utilization`, and memory for driver and
graphs. On both, it is at most as large as `max_num_seqs` full contexts need, and its settings take precedence.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from dataclasses import dataclass

from app.checkpoint.expert_names import EXPERTS
from app.checkpoint.expert_sizes import active_bytes
from app.checkpoint.sizes import FLOAT_BYTES, StoredType, decoded, kept_bytes, kv_bytes_per_token
from app.checkpoint.spec import ModelSpec
from app.config.devices import CAPABILITIES, NO_EXPERTS, gpu_rejection
from app.config.nearest import nearest
from app.config.setting import KIB, MIB
from app.config.settings import Config
from app.contract.errors import CannotStart, ConfigurationError
from app.engine.execute.activation_sizes import activation_bytes, host_activation_bytes, mask_bytes, num_logit_rows
from app.engine.execute.memory_plan import plan_num_blocks, plan_num_host_blocks
from app.engine.kv_disk.block_writer import MAX_QUEUED_BYTES
from app.engine.kv_disk.disk_store import MAX_HELD_BYTES
from app.kernels.cpu.compiling import supported_sets

PROCESS_BYTES = 400 * MIB  # of RAM: Python, torch and other libraries, the tokenizer, the stacks of threads
GRAMMAR_PROCESS_BYTES, GRAMMAR_TOKEN_BYTES = 32 * MIB, 1000  # of RAM: measured in docs/decisions.md, 2026-11-30
STORE_BYTES = MAX_HELD_BYTES + MAX_QUEUED_BYTES  # of RAM, with --kv-disk: blocks on their way from and to the disk
GPU_RESERVE = 768 * MIB  # of a GPU, in addition to the rest of gpu_memory_utilization: driver, libraries, graphs
UNLIMITED = 2**62  # bytes
COUNT_BYTES = 2
UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

GPUS = {
    "T4": 15360 * MIB,
    "A10": 23028 * MIB,
    "L4": 23034 * MIB,
    "RTX4090": 24564 * MIB,
    "RTX5090": 32607 * MIB,
    "A100-40GB": 40960 * MIB,
    "L40S": 46068 * MIB,
    "H100": 81559 * MIB,
    "A100-80GB": 81920 * MIB,
    "H200": 143771 * MIB,
    "B200": 183359 * MIB,
    "MI300X": 196592 * MIB,
}
"""Bytes by name, smallest first: the totals of `nvidia-smi` and `rocm-smi`, which differ from the nominal sizes."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory to plan for: all memory of a GPU, or the free RAM."""

    name: str
    num_bytes: int
    is_gpu: bool
    is_here: bool = False  # of this machine, so that its speed can be measured
    reserved_bytes: int = 0  # of a GPU: not used by the engine
    process_bytes: int = 0  # of RAM: used by the server's process without a model
    capability: tuple[int, int] | None = None  # of a GPU that is known by name
    rejection: str = ""  # why a server cannot use this GPU, or not for this model


@dataclass(frozen=True, slots=True)
class KVBlock:
    """The size of one KV block: keys and values in all layers."""

    block_size: int
    bytes_per_token: int

    @property
    def bytes_per_block(self) -> int:
        """Bytes of all its slots."""
        return self.block_size * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class Budget:
    """The division of a memory, in bytes.

    `room_bytes` is available for the KV cache; it is below 0 if the weights do not fit. `num_blocks` is 0 if the server
    would not start: then `missing_bytes` is the memory that is missing, or `too_small` is the option with a size of
    less than one block.
    """

    memory: Memory
    block: KVBlock
    weight_bytes_by_kind: dict[str, int]
    stored_type: StoredType
    activation_bytes: int
    host_cache_bytes: int
    room_bytes: int
    num_blocks: int = 0
    missing_bytes: int = 0
    too_small: str = ""

    @property
    def weight_bytes(self) -> int:
        """The size of all weights."""
        return sum(self.weight_bytes_by_kind.values())

    @property
    def fits(self) -> bool:
        """Whether the server would start."""
        return self.num_blocks > 0

    @property
    def cache_bytes(self) -> int:
        """The size of the KV cache; if it does not fit, the configured size or one block."""
        return self.num_blocks * self.block.bytes_per_block or self.room_bytes + self.missing_bytes - self.swap_bytes

    @property
    def swap_bytes(self) -> int:
        """The size of the swap space in this memory; 0 on a GPU."""
        return 0 if self.memory.is_gpu else self.host_cache_bytes

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV cache can hold."""
        return self.num_blocks * self.block.block_size

    @property
    def left_bytes(self) -> int:
        """Unused memory, the reserve included."""
        taken = (
            self.memory.process_bytes + self.weight_bytes + self.activation_bytes + self.cache_bytes + self.swap_bytes
        )
        return self.memory.num_bytes - taken

    def num_sequences(self, length: int) -> int:
        """Return the number of sequences of `length` tokens whose blocks fit at the same time."""
        return self.num_blocks // -(-length // self.block.block_size)


def gpu(config: Config, name: str, num_bytes: int) -> Memory:
    """Return a GPU's memory; the engine does not use a reserved part of it."""
    left_free = int(num_bytes * (1 - config.cache.gpu_memory_utilization))
    return Memory(name, num_bytes, is_gpu=True, reserved_bytes=left_free + GPU_RESERVE)


def known_gpu(config: Config, name: str) -> Memory:
    """Return the memory of a GPU that is known by name, and whether it can be used.

    Raises:
        ConfigurationError: see find_gpu.
    """
    name, num_bytes = find_gpu(name)
    capability = CAPABILITIES.get(name)
    rejection = "Quire runs on NVIDIA GPUs only"
    if capability is not None:
        rejection = gpu_rejection(capability, config.cache.kv_cache_dtype)
    return dataclasses.replace(gpu(config, f"one {name}", num_bytes), capability=capability, rejection=rejection)


def find_gpu(name: str) -> tuple[str, int]:
    """Return a GPU's name and memory; case, spaces and a leading RTX are ignored.

    Raises:
        ConfigurationError: the GPU is unknown; the message has a suggestion.
    """
    wanted = _comparable(name)
    for known, memory in GPUS.items():
        if wanted == _comparable(known):
            return known, memory
    raise ConfigurationError(
        f"--gpu is {name!r}{nearest(name.upper(), GPUS)}; it must be one of {', '.join(GPUS)}. "
        "For other GPUs use --gpu-memory SIZE.",
        param="gpu",
    )


def make_budget(config: Config, spec: ModelSpec, memory: Memory, stored_type: StoredType = decoded) -> Budget:
    """Divide `memory` as a server would; `stored_type` is that of the model's files."""
    if memory.is_gpu and spec.experts is not None:
        memory = dataclasses.replace(memory, rejection=NO_EXPERTS)
    block = KVBlock(config.cache.block_size, kv_bytes_per_token(spec, config.cache.kv_cache_dtype))
    weights = weight_bytes_by_kind(config, spec, decoded if memory.is_gpu else stored_type)
    if memory.is_gpu:
        activations = activation_bytes(config, spec, has_kernels=False)
        activations += mask_bytes(config, spec) + sampling_bytes(config, spec)
    else:
        activations = host_activations(config, spec, stored_type)
    host_cache = config.cache.swap_space // block.bytes_per_block * block.bytes_per_block
    room = memory.num_bytes - memory.reserved_bytes - memory.process_bytes - sum(weights.values()) - activations
    budget = Budget(memory, block, weights, stored_type, activations, host_cache, room)
    cache_memory = config.cache.kv_cache_memory if config.cache.num_kv_blocks is None else None
    for option, given in (("kv-cache-memory", cache_memory), ("swap-space", config.cache.swap_space or None)):
        if given is not None and given < block.bytes_per_block:
            return dataclasses.replace(budget, too_small=f"--{option}")

    def num_blocks(missing: int) -> int:
        """Return the number of KV blocks with `missing` more bytes of room; 0 if the server would not start."""
        try:
            free, is_gpu = room + missing, memory.is_gpu
            planned = plan_num_blocks(config, block, context(config, spec), free, free if is_gpu else None)
            if not is_gpu:
                plan_num_host_blocks(config, block, free - planned * block.bytes_per_block)
        except CannotStart:
            return 0
        return planned

    missing = bisect_left(range(UNLIMITED), 1, key=lambda missing: min(num_blocks(missing), 1))
    return dataclasses.replace(budget, num_blocks=0 if missing else num_blocks(0), missing_bytes=missing)


def context(config: Config, spec: ModelSpec) -> int:
    """Return the maximum length of prompt and output together, in tokens."""
    return config.model.max_model_len or spec.max_position


def has_kernels(config: Config) -> bool:
    """Return whether a server on this machine would use the native kernels, if they exist or can be compiled."""
    return bool(supported_sets()) and not config.model.enforce_eager


def weights_by_kind(spec: ModelSpec) -> dict[str, int]:
    """Return the number of weights of embedding (with the output head), attention, MLP and norms."""
    return _by_kind({name: math.prod(shape) for name, shape in spec.tensor_shapes().items()})


def active_weight_bytes(config: Config, spec: ModelSpec, stored_type: StoredType) -> int:
    """Return the bytes of the weights that a step of one token reads, see `active_bytes`."""
    return active_bytes(spec, *quantized_as(config, spec, stored_type))


def weight_bytes_by_kind(config: Config, spec: ModelSpec, stored_type: StoredType) -> dict[str, int]:
    """Return the bytes of the weights of each kind; without the native kernels quantization saves no memory.

    `stored_type` is that of the model's files, where the device does not decode them.
    """
    return _by_kind(kept_bytes(spec, *quantized_as(config, spec, stored_type)))


def quantized_as(config: Config, spec: ModelSpec, stored_type: StoredType) -> tuple[str | None, StoredType]:
    """Return the quantization that a server would apply, and the groups of files that it would keep as they are."""
    quantization = config.model.quantization if has_kernels(config) else None
    is_kept = has_kernels(config) and config.model.quantization is None and spec.dtype == "bfloat16"
    return quantization, stored_type if is_kept else decoded


def host_activations(config: Config, spec: ModelSpec, stored_type: StoredType) -> int:
    """Return the bytes that steps on a CPU need; `stored_type` is that of the model's files."""
    kernels = has_kernels(config)
    return host_activation_bytes(config, spec, *quantized_as(config, spec, stored_type), has_kernels=kernels)


def sampling_bytes(config: Config, spec: ModelSpec) -> int:
    """Return the bytes that sampling needs on a GPU: adjusted logits, and a count for each sequence and token."""
    num_rows = config.scheduler.max_num_seqs + 1
    return spec.vocab_size * (num_rows * COUNT_BYTES + num_logit_rows(config) * FLOAT_BYTES)


def _comparable(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum()).removeprefix("rtx")


def _by_kind(sizes: dict[str, int]) -> dict[str, int]:
    kinds = {"embedding": 0, "attention": 0, "MLP": 0, "experts": 0, "norms": 0}
    for name, size in sizes.items():
        if EXPERTS in name:
            kind = "experts"
        elif "norm" in name:
            kind = "norms"
        elif ".self_attn." in name:
            kind = "attention"
        else:
            kind = "MLP" if ".mlp." in name else "embedding"
        kinds[kind] += size
    return {kind: size for kind, size in kinds.items() if size or kind not in ("MLP", "experts")}


def stored_tokens(config: Config, block: KVBlock) -> int:
    """Return how many tokens of the prefix cache there may be on disk, with `--kv-disk`."""
    return config.server.kv_disk_space // block.bytes_per_block * block.block_size


def grammar_process_bytes(vocab_size: int) -> int:
    """Return about what the processes for grammars take, from the first grammar on, beside what grammars take.

    They share the vocabulary: the bytes of its tokens, the tokenizer and the tables of the grammar library.
    """
    return GRAMMAR_PROCESS_BYTES + vocab_size * GRAMMAR_TOKEN_BYTES


def size(num_bytes: int) -> str:
    """Return a number of bytes as text, in the unit that needs the fewest digits."""
    value, units = num_bytes / KIB, list(UNITS)
    while value >= 999.95 and len(units) > 1:
        value, units = value / KIB, units[1:]
    text = f"{value:,.1f}"
    return f"{text.removesuffix('.0') if units[0] == 'KiB' else text} {units[0]}"
