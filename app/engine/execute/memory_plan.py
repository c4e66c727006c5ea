"""How many KV blocks to allocate, on the device and in host memory, by the settings and the free memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from app.config.devices import CUDA, resolve_device
from app.config.setting import GIB, KIB, MIB
from app.config.settings import Config
from app.contract.engine_counts import MemoryCounts
from app.contract.errors import CannotStart

_UNITS = ((GIB, "GiB"), (MIB, "MiB"))
MAX_DEFAULT_BYTES = 4 * GIB
_BAR_WIDTH = 40


class BlockLayout(Protocol):
    """The sizes of a KV block: a `KVLayout`, or its numbers where torch is not loaded."""

    @property
    def block_size(self) -> int:
        """Token slots of a block."""

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of one block in all layers."""


def check_weights(num_bytes: int, free_bytes: int, advise: Callable[[int], str] | None = None) -> None:
    """Reject weights that do not fit in memory, before any of them is loaded.

    `advise` returns a sentence about what fits in the bytes that are free.

    Raises:
        CannotStart: they need more than `free_bytes`.
    """
    if num_bytes > free_bytes:
        taken, free = _size(num_bytes, up=True), _size(free_bytes)
        advice = advise(free_bytes) if advise else "Use a smaller model or a shorter dtype."
        raise CannotStart(f"The weights take {taken}; {free} are free. {advice}")


def check_activations(num_bytes: int, weight_bytes: int, free_bytes: int, num_tokens: int) -> None:
    """Reject activations that do not fit beside the weights, before any of both is there.

    They are those of steps with up to `num_tokens` tokens.

    Raises:
        CannotStart: weights and activations need more than `free_bytes`.
    """
    if weight_bytes + num_bytes > free_bytes:
        taken = f"{_size(weight_bytes, up=True)}, and the activations {_size(num_bytes, up=True)}"
        raise CannotStart(
            f"The weights take {taken}; {_size(free_bytes)} are free. Lower --max-num-batched-tokens, which is "
            f"{num_tokens}, or use a smaller model."
        )


def default_cache_bytes(free_bytes: int) -> int:
    """Return the default bytes of a KV cache in RAM: a quarter, because the machine runs other programs too."""
    return min(free_bytes // 4, MAX_DEFAULT_BYTES)


def plan_num_blocks(
    config: Config, layout: BlockLayout, max_model_len: int, free_bytes: int, default_bytes: int | None = None
) -> int:
    """Return the number of usable KV blocks, given the memory that is free with the weights loaded.

    Default: `default_bytes`, or a quarter of it, at most 4 GiB; no more than `max_num_seqs` full contexts can use.

    Raises:
        CannotStart: there is not enough memory for the settings, or for even one block.
    """
    useful = config.scheduler.max_num_seqs * -(-max_model_len // layout.block_size)
    if config.cache.num_kv_blocks is not None:
        num_blocks = config.cache.num_kv_blocks
    elif config.cache.kv_cache_memory is not None:
        num_blocks = min(config.cache.kv_cache_memory // layout.bytes_per_block, useful)
    else:
        if default_bytes is None:
            default_bytes = default_cache_bytes(free_bytes)
        num_blocks = min(default_bytes // layout.bytes_per_block, useful)
    if num_blocks < 1 and config.cache.kv_cache_memory is not None:
        raise CannotStart(
            f"--kv-cache-memory is {config.cache.kv_cache_memory} bytes, and one KV block takes "
            f"{_size(layout.bytes_per_block, up=True)}; set more, with a unit: for example 1GiB."
        )
    if num_blocks < 1:
        raise CannotStart(
            f"Not enough memory for one KV block of {_size(layout.bytes_per_block, up=True)}: {_size(free_bytes)} are "
            "free. Free memory, or set --kv-cache-memory"
            + (", or raise --gpu-memory-utilization." if resolve_device(config.model.device) == CUDA else ".")
        )
    if num_blocks * layout.bytes_per_block > free_bytes:
        raise CannotStart(
            f"A KV cache of {num_blocks} blocks takes {_size(num_blocks * layout.bytes_per_block, up=True)}; "
            f"{_size(free_bytes)} are free, enough for {free_bytes // layout.bytes_per_block}. "
            "Lower --num-kv-blocks or --kv-cache-memory."
        )
    return num_blocks


def plan_num_host_blocks(config: Config, layout: BlockLayout, free_bytes: int) -> int:
    """Return the number of KV blocks that `swap_space` holds; `free_bytes` are left beside weights and KV blocks.

    Raises:
        CannotStart: `swap_space` is more than `free_bytes`, or less than one block.
    """
    swap_space = config.cache.swap_space
    if 0 < swap_space < layout.bytes_per_block:
        raise CannotStart(
            f"--swap-space of {_size(swap_space)} is less than one KV block of "
            f"{_size(layout.bytes_per_block, up=True)}; raise it, or leave it out."
        )
    if swap_space > free_bytes:
        raise CannotStart(
            f"--swap-space of {_size(swap_space, up=True)} is more than the {_size(max(0, free_bytes))} that are free "
            "beside the KV cache. Lower it, or --num-kv-blocks or --kv-cache-memory."
        )
    return swap_space // layout.bytes_per_block


def memory_parts(memory: MemoryCounts, *, num_tokens: int, free: int) -> dict[str, int]:
    """Return the uses of memory, in bytes by name; swap space is always the host's, graphs are a GPU's."""
    parts = {
        "weights": memory.weights,
        "graphs": memory.graphs,
        "activations": memory.activations,
        f"KV cache of {num_tokens:,} tokens": memory.kv_cache,
        "swap space": memory.kv_host,
        "left free": free,
    }
    return {name: size for name, size in parts.items() if size or name not in ("graphs", "swap space")}


def memory_line(parts: dict[str, int]) -> str:
    """Return the uses of memory as one line of text."""
    return ", ".join(f"{name} {_size(size)}" for name, size in parts.items())


def memory_table(parts: dict[str, int]) -> list[str]:
    """Return the uses of memory as lines, one for each part with a bar on a common scale."""
    total = max(1, sum(parts.values()))
    width, sizes = max(map(len, parts)), {name: _size(size) for name, size in parts.items()}
    return [
        f"{name:<{width}}  {sizes[name]:>10}  {'█' * round(_BAR_WIDTH * size / total)}" for name, size in parts.items()
    ]


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes this process may still allocate: what the system has available, or less in a limited cgroup."""
    available = _meminfo_available(root / "proc/meminfo")
    limit = _read_number(root / "sys/fs/cgroup/memory.max")
    used = _read_number(root / "sys/fs/cgroup/memory.current")
    if limit is None or used is None:
        return available
    return max(0, min(available, limit - used))


def _meminfo_available(file: Path) -> int:
    try:
        for line in file.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 * GIB  # not Linux: assume little


def _read_number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return None


def _size(num_bytes: int, *, up: bool = False) -> str:
    """Return a size as text, rounded down, or up for a needed size, so that advice with the rounded size is right."""
    unit, name = next(((unit, name) for unit, name in _UNITS if num_bytes >= unit / 10), (KIB, "KiB"))
    tenths = -(-10 * num_bytes // unit) if up else 10 * num_bytes // unit
    return f"{tenths / 10:.1f} {name}"
