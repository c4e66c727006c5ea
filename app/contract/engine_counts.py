"""What each part of the engine counts, as plain data; block 0, the padding, is not counted.

A part counts in its own `counts`, or makes them from what it holds; `Engine.stats` asks all parts after each turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.contract.counts import MEMORY, Counts, MetricFamily, counter, derived, gauge


@dataclass(slots=True)
class QueueCounts(Counts):
    """Requests by their state."""

    num_running: int = gauge("vllm:num_requests_running", "Running requests.")
    num_waiting: int = gauge("vllm:num_requests_waiting", "Requests in the queue.")
    num_paused: int = gauge("quire_sequences_paused", "Requests paused because their client reads slowly.")

    @derived(
        MetricFamily(
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            "Requests in the queue by the reason for waiting.",
            ("reason",),
        )
    )
    def by_reason(self) -> Mapping[str, float]:
        """Those that wait, by vLLM's reasons: capacity is the only one in this engine."""
        return {"capacity": self.num_waiting, "deferred": 0}


@dataclass(slots=True)
class BlockCounts(Counts):
    """Blocks of the KV cache: `num_free` can be allocated, and `num_cached` of them hold prefixes until then."""

    num_blocks: int = 0
    num_free: int = 0
    num_cached: int = 0
    num_fenced: int = 0
    num_host: int = gauge("quire_kv_host_blocks", "Blocks of host memory (`--swap-space`) in use.")
    num_capacity_tokens: int = gauge("quire_kv_capacity_tokens", "Tokens that the KV cache can hold.")
    num_allocated: int = counter("quire_kv_blocks_allocated", "KV blocks allocated.")
    num_copied: int = counter("quire_kv_blocks_copied", "KV blocks copied because they were shared and written to.")
    num_unfilled_tokens: int = gauge(
        "quire_kv_unfilled_tokens",
        "Tokens that blocks in use have room for and do not hold yet; counted four times a second.",
    )

    @property
    def num_used(self) -> int:
        """Blocks that requests or pins hold."""
        return self.num_blocks - self.num_free - self.num_fenced

    @derived(MetricFamily("vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 0 to 1."))
    def usage(self) -> float:
        """Return the share of blocks in use."""
        return self.num_used / max(self.num_blocks, 1)

    @derived(MetricFamily("quire_kv_blocks", "gauge", "KV blocks by state: free, cached, used, fenced.", ("state",)))
    def by_state(self) -> Mapping[str, float]:
        """Each block once: fenced ones are released, but a step in flight may still access them."""
        return {
            "free": self.num_free - self.num_cached,
            "cached": self.num_cached,
            "used": self.num_used,
            "fenced": self.num_fenced,
        }


@dataclass(slots=True)
class StartCounts(Counts):
    """Tokens of requests when they start, or start again."""

    num_prefix_queries: int = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
    num_prefix_hits: int = counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
    num_lost_tokens: int = counter("quire_lost_tokens", "Tokens dropped by a preemption or a fault and computed again.")


@dataclass(slots=True)
class PromptCounts(Counts):
    """Prompt tokens of requests that got their first token."""

    num_tokens: int = counter(
        "vllm:prompt_tokens", "Prompt tokens, cached ones included, of requests that got their first token."
    )
    num_cached: int = counter(
        "vllm:prompt_tokens_cached", "Those of `vllm:prompt_tokens` that were found in the prefix cache or on disk."
    )
    num_loaded: int = 0

    @derived(
        MetricFamily(
            "vllm:prompt_tokens_by_source",
            "counter",
            "Those of `vllm:prompt_tokens` that were computed, found in the prefix cache, or read from disk "
            "(`--kv-disk`).",
            ("source",),
        )
    )
    def by_source(self) -> Mapping[str, float]:
        """Return all prompt tokens, by vLLM's names of where their keys and values come from."""
        cached, loaded = self.num_cached, self.num_loaded
        return {
            "local_compute": self.num_tokens - cached,
            "local_cache_hit": cached - loaded,
            "external_kv_transfer": loaded,
        }


@dataclass(slots=True)
class PreemptionCounts(Counts):
    """Requests that lost their blocks to others."""

    num_preemptions: int = counter("vllm:num_preemptions", "Preemptions.")
    num_swaps: int = counter("quire_swaps", "Preemptions that kept the KV blocks in host memory.")


@dataclass(slots=True)
class BudgetCounts(Counts):
    """Steps and the time that they may take."""

    num_over_target: int = counter(
        "quire_steps_over_budget", "Steps longer than `--itl-target` while outputs were being generated."
    )


@dataclass(frozen=True, slots=True)
class PredictionAccuracy(Counts):
    """The accuracy of predicted lengths, over about the last 1,000 requests; all 0 without predictions.

    `error` is the mean |log2(predicted / actual)|, each predicted just before its result was seen (1.0: off by a
    factor of two); `constant_error` is the same if the common mean were always predicted. `rank` is the share of pairs
    of requests that ended one after the other whose longer one was predicted to be longer (half a pair if both
    predictions were equal); 0.5 is chance.
    """

    num_requests: int = 0
    error: float = gauge(
        "quire_length_prediction_error",
        "Mean absolute log2 error of predicted output lengths (policies sjf and fair); 1 is a factor of two.",
        start=0.0,
    )
    constant_error: float = gauge(
        "quire_length_constant_error", "The same error of always predicting the mean.", start=0.0
    )
    rank: float = 0.0


@dataclass(slots=True)
class SpeculationCounts(Counts):
    """Drafts of steps that are done, by n-grams and by grammars."""

    num_drafts: int = counter(
        "vllm:spec_decode_num_drafts", "Drafts of next tokens (`--speculative-ngram`, `--speculative-grammar`)."
    )
    num_draft_tokens: int = counter("vllm:spec_decode_num_draft_tokens", "Draft tokens.")
    num_accepted_tokens: int = counter("vllm:spec_decode_num_accepted_tokens", "Accepted draft tokens.")
    num_forced_tokens: int = counter("quire_forced_tokens", "Accepted draft tokens that grammars left no choice about.")


@dataclass(slots=True)
class GraphCounts(Counts):
    """Recordings of steps, and the CUDA graphs among them."""

    num_captured: int = counter("quire_graph_captures", "CUDA graphs captured.")
    num_failures: int = counter(
        "quire_graph_failures",
        "Captures of CUDA graphs that failed; each is tried twice, and steps without a graph take longer.",
    )
    num_graph_steps: int = 0
    num_eager_steps: int = 0

    @derived(
        MetricFamily(
            "quire_graph_steps",
            "counter",
            "Steps by mode: graph (a recording, on a GPU a CUDA graph, in one call) or eager (each operation called).",
            ("mode",),
        )
    )
    def by_mode(self) -> Mapping[str, float]:
        """Return the computed steps."""
        return {"graph": self.num_graph_steps, "eager": self.num_eager_steps}


@dataclass(slots=True)
class RecoveryCounts(Counts):
    """Steps that raised, and the requests that made them raise."""

    num_faults: int = counter("quire_faults", "Engine steps that raised an exception.")
    num_culprits: int = counter(
        "quire_requests_poisoned", "Culprits: requests that made engine steps raise, and failed."
    )


@dataclass(slots=True)
class MemoryCounts(Counts):
    """Bytes that the engine has allocated, on its device and, for swapped blocks, on the host."""

    weights: int = 0
    kv_cache: int = 0
    activations: int = 0
    graphs: int = 0
    kv_host: int = 0

    @derived(MEMORY)
    def by_kind(self) -> Mapping[str, float]:
        """Return all of them."""
        return {name: getattr(self, name) for name in self.__slots__}
