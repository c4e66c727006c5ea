"""Status of the engine as plain data: state, counts, the loaded model, and the report of each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from app.contract.events import EngineEvent
from app.contract.requests import PoolingKind
from app.contract.sampling_defaults import SamplingDefaults


class EngineState(StrEnum):
    """The state that the health routes report."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """State, load progress (0..1), step number, monotonic time of the last progress; `message` explains a failure.

    The engine makes progress when it completes a step, and when an idle engine gets work. `is_busy` means that it has
    commands to execute, a step in flight, or sequences that can be scheduled.
    """

    state: EngineState
    progress: float = 0.0
    step: int = 0
    last_progress_time: float = 0.0
    message: str = ""
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine's counts; block 0, the padding, is not counted.

    `num_free_blocks` can be allocated; `num_cached_blocks` of them hold prefixes that can be found until then.
    `num_running`, `num_waiting` and `num_paused` count requests. Totals since startup are marked as such.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_paused: int = 0
    num_free_blocks: int = 0
    num_blocks: int = 0
    num_preemptions: int = 0
    step: int = 0
    num_cached_blocks: int = 0
    num_fenced_blocks: int = 0
    num_host_blocks: int = 0  # in use, of `--swap-space`
    num_capacity_tokens: int = 0  # tokens that the whole KV cache can hold
    brownout_level: int = 0
    num_swaps: int = 0  # total preemptions that kept the KV blocks in host memory
    num_lost_tokens: int = 0  # total tokens computed, dropped by a preemption or a fault, and computed again
    num_prefix_queries: int = 0  # total prompt tokens looked up in the prefix cache
    num_prefix_hits: int = 0  # total prompt tokens found in the prefix cache
    num_allocated_blocks: int = 0  # total
    num_copied_blocks: int = 0  # total blocks copied because they were shared and about to be written
    num_steps_over_budget: int = 0  # total steps longer than `--itl-target` while outputs were being generated
    num_faults: int = 0  # total steps that raised
    length_error: float = 0.0  # mean |log2| error of predicted output lengths, where the policy predicts them
    constant_length_error: float = 0.0  # the same error of always predicting the mean
    num_failed_requests: int = 0  # total requests found to make steps raise
    num_drafts: int = 0  # total drafts, by n-grams and by grammars, in completed steps
    num_draft_tokens: int = 0  # total draft tokens
    num_accepted_tokens: int = 0  # total accepted draft tokens
    num_forced_tokens: int = 0  # total accepted draft tokens that grammars forced
    num_graphs: int = 0  # total CUDA graphs captured
    num_graph_failures: int = 0  # total captures of CUDA graphs that failed
    num_nan_requests: int = 0  # total requests that failed because their logits were no numbers
    num_prompt_tokens: int = 0  # total, cached ones included, of requests that got their first token


@dataclass(frozen=True, slots=True)
class StepReport:
    """All results of one engine step: the single hand-off per step from the engine thread to the event loop.

    The step computed `num_prefill_tokens` (of prompts) and `num_decode_tokens` (of outputs, without draft tokens);
    `duration_s` is its wall time. `mask_s` has the seconds that the masks of grammars took, for each step with any.
    """

    events: tuple[EngineEvent, ...]
    stats: EngineStats
    duration_s: float = 0.0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    mask_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Public facts of the loaded model: names, limits in tokens, defaults, EOS ids.

    `max_num_seqs` limits the sequences of one request; `kv_capacity_tokens` is a multiple of `block_size`. `format` is
    that of the files, safetensors or gguf; `quantization` is the setting, else the types of the matrices in the files;
    None if neither is quantized. `memory` lists the uses of a GPU's memory, one line each.
    `hidden_size` is the length of the hidden states that can be read; 0 if the device cannot. `pooling` is the kind of
    embeddings by default.
    """

    name: str
    revision: str
    max_model_len: int
    kv_capacity_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    created: int = 0
    block_size: int = 16
    max_num_seqs: int = 64
    format: str = "safetensors"
    quantization: str | None = None
    memory: tuple[str, ...] = ()
    hidden_size: int = 0
    pooling: PoolingKind = PoolingKind.MEAN

    @property
    def reads_prompts(self) -> bool:
        """Whether the device can read the hidden states of prompts: embeddings and scores of prompts take them."""
        return self.hidden_size > 0
