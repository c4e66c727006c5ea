"""The settings of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from app.config.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """KV cache."""

    block_size: int = setting(16, "Tokens per KV block.", choices=(8, 16, 32, 64, 128))
    kv_cache_dtype: str = setting(
        "auto",
        "Data type of the KV cache: `auto` is the model's; `int8` (one scale per token and head; CPU only) and `fp8` "
        "(e4m3; GPU of compute capability 8.9 or higher) take half the memory of a 16-bit type.",
        choices=("auto", "int8", "fp8"),
    )
    num_kv_blocks: int | None = setting(None, "Number of KV blocks; overrides `kv_cache_memory`.", minimum=1)
    kv_cache_memory: int | None = setting(
        None,
        "Memory for the KV cache (for example `2GiB`). Default on a CPU: a quarter of free RAM, at most 4 GiB and at "
        "most what `max_num_seqs` full contexts need. Default on a GPU: what `gpu_memory_utilization` leaves.",
        kind="bytes",
        minimum=1,
    )
    gpu_memory_utilization: float = setting(
        0.92,
        "Fraction of the GPU's memory that may be in use once the KV cache is allocated.",
        kind="share",
        minimum=0,
        maximum=1,
    )
    enable_prefix_caching: bool = setting(
        True,
        "Reuse the KV blocks of earlier prompts and outputs for prompts that begin with the same tokens.",
        negated="Disable prefix caching: compute every prompt from its first token.",
    )
    swap_space: int = setting(
        0,
        "Host memory for the KV blocks of preempted sequences and of evicted prefixes (for example `4GiB`); 0 "
        "disables swapping.",
        kind="bytes",
        minimum=0,
    )
    pin_prefix: tuple[str, ...] = setting(
        (),
        "File with a system prompt (surrounding whitespace is ignored) whose KV blocks are computed at startup and "
        "never evicted; repeatable.",
    )
