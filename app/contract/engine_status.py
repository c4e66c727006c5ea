"""Status of the engine as plain data: state, counts, the loaded model, and the report of each step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from app.contract.counts import Counts, MetricFamily, counter, derived, gauge
from app.contract.engine_counts import (
    BlockCounts,
    BudgetCounts,
    GraphCounts,
    MemoryCounts,
    PredictionAccuracy,
    PreemptionCounts,
    PromptCounts,
    QueueCounts,
    RecoveryCounts,
    SpeculationCounts,
    StartCounts,
)
from app.contract.engine_picture import EnginePicture
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
class EngineStats(Counts):
    """A snapshot of what the engine has counted, part by part (see `engine_counts`)."""

    step: int = 0
    brownout_level: int = gauge("quire_brownout_level", "Brown-out level, which rises under sustained load; 0 is none.")
    num_nan_requests: int = counter(
        "quire_requests_nan",
        "Requests failed because the model's logits were no numbers (NaN): its weights may be damaged.",
    )
    queues: QueueCounts = field(default_factory=QueueCounts)
    blocks: BlockCounts = field(default_factory=BlockCounts)
    starts: StartCounts = field(default_factory=StartCounts)
    prompts: PromptCounts = field(default_factory=PromptCounts)
    preemption: PreemptionCounts = field(default_factory=PreemptionCounts)
    budget: BudgetCounts = field(default_factory=BudgetCounts)
    lengths: PredictionAccuracy = field(default_factory=PredictionAccuracy)
    speculation: SpeculationCounts = field(default_factory=SpeculationCounts)
    graphs: GraphCounts = field(default_factory=GraphCounts)
    recovery: RecoveryCounts = field(default_factory=RecoveryCounts)
    memory: MemoryCounts = field(default_factory=MemoryCounts)

    @derived(
        MetricFamily(
            "vllm:corrupted_requests",
            "counter",
            "The same as `quire_requests_nan`, under vLLM's name.",
        )
    )
    def num_corrupted_requests(self) -> int:
        """Requests without numbers to sample from."""
        return self.num_nan_requests


@dataclass(frozen=True, slots=True)
class StepReport:
    """All results of one engine step: the single hand-off per step from the engine thread to the event loop.

    The step computed `num_prefill_tokens` (of prompts) and `num_decode_tokens` (of outputs, without draft tokens);
    `duration_s` is its wall time. `mask_s` has the seconds that the masks of grammars took, for each step with any.
    `picture` is there while somebody watches, and one is due.
    """

    events: tuple[EngineEvent, ...]
    stats: EngineStats
    duration_s: float = 0.0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    mask_s: tuple[float, ...] = ()
    picture: EnginePicture | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Public facts of the loaded model: names, limits in tokens, defaults, EOS ids.

    `max_num_seqs` limits the sequences of one request; `kv_capacity_tokens` is a multiple of `block_size`. `format` is
    that of the files, safetensors or gguf; `quantization` is the setting, else the types of the matrices in the files;
    None if neither is quantized. With `is_text_only` the files have a part for images, too, which is not loaded.
    `memory` lists the uses of a GPU's memory, one line each.
    `hidden_size` is the length of the hidden states that can be read; 0 if the device cannot. `pooling` is the kind of
    embeddings by default. `answer_tokens` is how long answers may be by the model's files, None if they do not say
    it: it matters only for a share of the context, see `DefaultLength`. `experts` are how many a layer has, and how
    many of them compute a token; None: the model has none. `kernels` are which compute: with others the same request
    may get other tokens; None: also with the same ones, as on a GPU without `--deterministic`.
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
    is_text_only: bool = False
    memory: tuple[str, ...] = ()
    hidden_size: int = 0
    pooling: PoolingKind = PoolingKind.MEAN
    answer_tokens: int | None = None
    experts: tuple[int, int] | None = None
    kernels: str | None = None

    def without_thinking(self) -> ModelInfo:
        """Return the same with the sampling defaults of answers before which the model is told not to think."""
        return replace(self, defaults=self.defaults.without_thinking or self.defaults)

    @property
    def reads_prompts(self) -> bool:
        """Whether the device can read the hidden states of prompts: embeddings and scores of prompts take them."""
        return self.hidden_size > 0
