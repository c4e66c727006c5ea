"""The engine's counts (`EngineStats`) as metric families, under vLLM's names where it has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import Metric

from app.config.settings import CacheConfig
from app.contract.engine_status import EngineStats
from app.observe.families import Families


class _Count(NamedTuple):
    name: str
    help: str
    field: str  # of EngineStats


_GAUGES = (
    _Count("vllm:num_requests_running", "Running requests.", "num_running"),
    _Count("vllm:num_requests_waiting", "Requests in the queue.", "num_waiting"),
    _Count("quire_sequences_paused", "Requests paused because their client reads slowly.", "num_paused"),
    _Count("quire_kv_host_blocks", "Blocks of host memory (`--swap-space`) in use.", "num_host_blocks"),
    _Count("quire_kv_capacity_tokens", "Tokens that the KV cache can hold.", "num_capacity_tokens"),
    _Count(
        "quire_length_prediction_error",
        "Mean absolute log2 error of predicted output lengths (policies sjf and fair); 1 is a factor of two.",
        "length_error",
    ),
    _Count("quire_length_constant_error", "The same error of always predicting the mean.", "constant_length_error"),
    _Count("quire_brownout_level", "Brown-out level, which rises under sustained load; 0 is none.", "brownout_level"),
)
_COUNTERS = (
    _Count("quire_kv_blocks_allocated", "KV blocks allocated.", "num_allocated_blocks"),
    _Count("quire_kv_blocks_copied", "KV blocks copied because they were shared and written to.", "num_copied_blocks"),
    _Count(
        "vllm:prompt_tokens",
        "Prompt tokens, cached ones included, of requests that got their first token.",
        "num_prompt_tokens",
    ),
    _Count("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "num_prefix_queries"),
    _Count("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", "num_prefix_hits"),
    _Count("vllm:num_preemptions", "Preemptions.", "num_preemptions"),
    _Count("quire_swaps", "Preemptions that kept the KV blocks in host memory.", "num_swaps"),
    _Count("quire_lost_tokens", "Tokens dropped by a preemption or a fault and computed again.", "num_lost_tokens"),
    _Count(
        "quire_steps_over_budget",
        "Steps longer than `--itl-target` while outputs were being generated.",
        "num_steps_over_budget",
    ),
    _Count(
        "vllm:spec_decode_num_drafts",
        "Drafts of next tokens (`--speculative-ngram`, `--speculative-grammar`).",
        "num_drafts",
    ),
    _Count("vllm:spec_decode_num_draft_tokens", "Draft tokens.", "num_draft_tokens"),
    _Count("vllm:spec_decode_num_accepted_tokens", "Accepted draft tokens.", "num_accepted_tokens"),
    _Count("quire_forced_tokens", "Accepted draft tokens that grammars left no choice about.", "num_forced_tokens"),
    _Count("quire_graph_captures", "CUDA graphs captured.", "num_graphs"),
    _Count(
        "quire_graph_failures",
        "Captures of CUDA graphs that failed; each is tried twice, and steps without a graph take longer.",
        "num_graph_failures",
    ),
    _Count(
        "quire_requests_nan",
        "Requests failed because the model's logits were no numbers (NaN): its weights may be damaged.",
        "num_nan_requests",
    ),
    _Count("quire_faults", "Engine steps that raised an exception.", "num_faults"),
    _Count("quire_requests_poisoned", "Requests found to make engine steps raise, and failed.", "num_failed_requests"),
)


def engine_counts(stats: EngineStats, families: Families) -> Iterator[Metric]:
    """Yield `stats` as metric families.

    A block is in one state: used, fenced (released, but a step in flight may still access it), cached (can be
    allocated, and its prefix can be found until then) or free.
    """
    for gauge in _GAUGES:
        yield families.gauge(gauge.name, gauge.help, getattr(stats, gauge.field))
    # Capacity is the only reason for which requests wait in this engine.
    waiting = {"capacity": stats.num_waiting, "deferred": 0}
    yield families.gauge(
        "vllm:num_requests_waiting_by_reason", "Requests in the queue by the reason for waiting.", waiting, by="reason"
    )
    num_used = stats.num_blocks - stats.num_free_blocks - stats.num_fenced_blocks
    usage = num_used / max(stats.num_blocks, 1)
    yield families.gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", usage)
    states = {
        "free": stats.num_free_blocks - stats.num_cached_blocks,
        "cached": stats.num_cached_blocks,
        "used": num_used,
        "fenced": stats.num_fenced_blocks,
    }
    yield families.gauge("quire_kv_blocks", "KV blocks by state: free, cached, used, fenced.", states, by="state")
    for counter in _COUNTERS:
        yield families.counter(counter.name, counter.help, getattr(stats, counter.field))


def cache_info(cache: CacheConfig, stats: EngineStats, labels: Mapping[str, str]) -> Metric:
    """Return the settings of the KV cache as the labels of a gauge that is 1, under vLLM's names for them."""
    block_size = stats.num_capacity_tokens // stats.num_blocks if stats.num_blocks else cache.block_size
    values = {
        **labels,
        "block_size": block_size,
        "cache_dtype": cache.kv_cache_dtype,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "num_gpu_blocks": stats.num_blocks,
        "swap_space": cache.swap_space,
    }
    families = Families({name: str(value) for name, value in values.items()})
    return families.gauge("vllm:cache_config_info", "The KV cache's settings.", 1)
