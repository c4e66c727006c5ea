"""What the engine says of itself: state, counts, the model it has loaded, and the report of each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from app.contract.events import EngineEvent
from app.contract.sampling_params import SamplingDefaults


class EngineState(StrEnum):
    """What the health routes report."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """State, load progress (0..1), step number, monotonic time of the last progress; `message` explains a failure.

    Progress is a step, or that work came to an engine which had none. `is_busy` says that it has some: commands to
    carry out, a step under way, or one that could be.
    """

    state: EngineState
    progress: float = 0.0
    step: int = 0
    last_progress_time: float = 0.0
    message: str = ""
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine's counts; blocks are usable ones (block 0 is not counted).

    `num_free_blocks` can be handed out: `num_cached_blocks` of them hold findable content until then. Running,
    waiting and paused count requests. What begins with `num_` after `step` and is no number of blocks only grows.
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
    num_capacity_tokens: int = 0  # what all blocks together hold
    brownout_level: int = 0
    num_swaps: int = 0  # preemptions that kept the KV blocks in host memory
    num_lost_tokens: int = 0  # computed, dropped by a preemption or a fault, and to be computed again
    num_prefix_queries: int = 0  # prompt tokens looked up in the prefix cache
    num_prefix_hits: int = 0  # prompt tokens found there
    num_allocated_blocks: int = 0
    num_copied_blocks: int = 0  # copied because they were shared and about to be written
    num_steps_over_budget: int = 0  # steps that took longer than `--itl-target` while answers were being written
    num_faults: int = 0  # steps that raised
    length_error: float = 0.0  # of predicted answer lengths, mean |log2|, where the policy predicts them
    constant_length_error: float = 0.0  # the same for always guessing the common mean
    num_failed_requests: int = 0  # requests that were found to make steps raise
    num_drafts: int = 0  # of `--speculative-ngram`, in steps that are done
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0  # draft tokens that became part of answers
    num_graphs: int = 0  # CUDA graphs that were captured
    num_prompt_tokens: int = 0  # of requests that got their first token, cached ones among them


@dataclass(frozen=True, slots=True)
class StepReport:
    """All that one engine step has to say: the one hand-off from the engine thread to the loop.

    `num_prefill_tokens` (of prompts) and `num_decode_tokens` (of answers, without draft tokens) count what the step
    computed; `duration_s` is its wall time.
    """

    events: tuple[EngineEvent, ...]
    stats: EngineStats
    duration_s: float = 0.0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the outside may know of the loaded model: names, limits in tokens, defaults, EOS ids.

    `max_num_seqs` bounds the sequences of one request; `kv_capacity_tokens` is a whole number of KV blocks. `memory`
    says in lines what a GPU's memory is used for.
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
    memory: tuple[str, ...] = ()
