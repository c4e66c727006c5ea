"""How many KV blocks to take: from the settings, else from what is really free after the weights are loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.config import GIB, Config
from app.engine.execute.kv_cache import KVLayout
from app.errors import CannotStart

MAX_DEFAULT_BYTES = 4 * GIB


def plan_num_blocks(config: Config, layout: KVLayout, max_model_len: int, free_bytes: Callable[[], int]) -> int:
    """Return the number of usable KV blocks.

    Default: a quarter of the free memory, at most 4 GiB, and no more than `max_num_seqs` full contexts can use.

    Raises:
        CannotStart: there is no memory for even one block.
    """
    if config.cache.num_kv_blocks is not None:
        return config.cache.num_kv_blocks
    if config.cache.kv_cache_memory is not None:
        budget = config.cache.kv_cache_memory
    else:
        budget = min(free_bytes() // 4, MAX_DEFAULT_BYTES)
    blocks_per_sequence = -(-max_model_len // layout.block_size)
    num_blocks = min(budget // layout.bytes_per_block, config.scheduler.max_num_seqs * blocks_per_sequence)
    if num_blocks < 1:
        raise CannotStart(
            f"{budget} bytes for the KV cache hold not one block of {layout.bytes_per_block} bytes; "
            "free memory or set --kv-cache-memory."
        )
    return num_blocks


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes this process may still take: what the system has available, or less where a cgroup limits it."""
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
