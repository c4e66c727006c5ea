"""Immutable messages that cross threads, and the protocols on either side of the thread border.

Only plain data is here: ints, strings, frozen dataclasses. Token ids go in; token ids and the text they released
come out. `EngineClient` is what the API talks to; `EnginePort` is what the bridge needs of the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from app.errors import ErrorInfo
from app.logprobs import Logprobs
from app.params import SamplingDefaults, SamplingParams


class FinishReason(StrEnum):
    """Why a choice ended; `cancelled` exists on quire.v1 only."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class EngineState(StrEnum):
    """What the health routes report."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One client call, checked and tokenized: what the engine needs to know, and nothing of transports.

    `params` is resolved: no `None` in a model-dependent field, `max_tokens` and `seed` set (see `admission.admit`).
    Times are monotonic seconds: it must start by `start_deadline` and be complete by `deadline`. The lower the
    `priority`, the sooner its turn. KV blocks are shared only between requests of the same `tenant` (the API key's
    name) and `cache_salt`. Its `account` orders and bounds the work of its client, and says nothing of blocks.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_time: float
    start_deadline: float | None = None
    deadline: float | None = None
    priority: int = 0
    tenant: str | None = None
    cache_salt: str | None = None
    account: str = ""


class TokenDelta(NamedTuple):
    """New tokens of one choice and the text they released (possibly none).

    `first` is the number of the first token; tokens of a choice are numbered 1, 2, 3 ... without gaps. Where asked for,
    the last delta has the log-probabilities of those tokens too that ended the choice and are not told.
    """

    request_id: str
    choice: int
    first: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts: prompt, generated (stop text included), prompt tokens found in a cache.

    `preemptions` counts how often the request lost its KV blocks, `lost_tokens` the tokens computed again for it.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    preemptions: int = 0
    lost_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one choice inside the engine: waiting, until the first token, until the end; from its arrival."""

    queue_s: float
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one choice; exactly one per choice unless the request failed.

    `usage.prompt_tokens` and what follows from it are the request's, the same in each of its choices;
    `usage.completion_tokens` are the choice's own. `params` are what was asked for.
    """

    request_id: str
    choice: int
    reason: FinishReason
    usage: Usage
    timings: Timings
    params: SamplingParams | None = None


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The end of a request that could not be finished."""

    request_id: str
    error: ErrorInfo


class Phase(StrEnum):
    """Where a request stands that gains no tokens now, or gains them again."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PAUSED = "paused"
    PREEMPTED = "preempted"


class Progress(NamedTuple):
    """Where a request stands: of its `total` tokens, prompt and answer so far, `done` have been computed.

    A request tells of it when that is not plain from its deltas: while it waits, reads its prompt, is paused or lost
    its KV blocks, and when it goes on after that.
    """

    request_id: str
    phase: Phase
    done: int
    total: int


EngineEvent = TokenDelta | Finished | RequestFailed | Progress


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
    num_guesses: int = 0  # of `--speculative-ngram`, in steps that are done
    num_guessed_tokens: int = 0
    num_right_tokens: int = 0  # guessed ones that became part of answers
    num_graphs: int = 0  # CUDA graphs that were captured
    num_prompt_tokens: int = 0  # of requests that got their first token, cached ones among them


@dataclass(frozen=True, slots=True)
class StepReport:
    """All that one engine step has to say: the one hand-off from the engine thread to the loop.

    `num_prefill_tokens` (of prompts) and `num_decode_tokens` (of answers, guesses not among them) count what the step
    computed; `duration_s` is its wall time.
    """

    events: tuple[EngineEvent, ...]
    stats: EngineStats
    duration_s: float = 0.0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0


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
class ModelCard:
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


# --- Commands: loop -> engine thread ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """Start working on a request."""

    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop a request and free what it holds; unknown and finished ids are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop scheduling a request; it keeps its blocks."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Schedule a paused request again."""

    request_id: str


EngineCommand = Submit | Abort | Pause | Resume


class EnginePort(Protocol):
    """The engine thread as the bridge sees it. All methods may be called from the loop and never block."""

    def start(self, deliver: Callable[[StepReport], None]) -> None:
        """Load the model in the background; `deliver` is then called on the engine thread, once per step."""

    def post(self, command: EngineCommand) -> None:
        """Put a command into the inbox and wake the engine."""

    def health(self) -> EngineHealth:
        """Return the current state."""

    def card(self) -> ModelCard | None:
        """Return the model's card, or None until it is loaded."""

    def stop(self) -> None:
        """Ask the thread to end after the current step."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end (blocks: call it in an executor); True if it has ended."""


class StreamStatistics(NamedTuple):
    """Counts of one stream: events put in, deltas that were merged into an earlier one, and what waits now."""

    num_events: int = 0
    num_merged: int = 0
    pending_tokens: int = 0
    pending_bytes: int = 0


class ByteCount(Protocol):
    """A sum of bytes that several keep together."""

    num_bytes: int


class EventStream(Protocol):
    """The events of one request, in order; ends after the last `Finished` or one `RequestFailed`. Loop only.

    One reader at a time, who either waits in `get` or is called by `listen` and then polls.
    """

    async def get(self) -> list[EngineEvent]:
        """Wait for news and return it, adjacent deltas of a choice merged, of much a piece; [] at the stream's end.

        Cancel-safe: a cancelled `get()` loses no event.
        """

    def nudge(self) -> None:
        """Let `get` return once, with nothing if there is nothing."""

    def poll(self) -> EngineEvent | None:
        """Return one event that may be told now, or None. Like `get` it says that what came before was delivered."""

    @property
    def has_more(self) -> bool:
        """Whether the reader should poll again although nothing new comes."""

    def listen(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` whenever `poll` may have something."""

    def watch(self, on_backlog: Callable[[int], None]) -> None:
        """Call `on_backlog` when the reader falls behind or catches up: with 0, 1 (too much waits) or 2 (no room)."""

    def count_in(self, pending: ByteCount) -> None:
        """Count what waits here in a common sum, too; before anything does."""

    def allow(self, upto: Sequence[int]) -> None:
        """Tell of choice i no more than its token `upto[i]` from now on; numbers never fall."""

    def skip(self) -> None:
        """Drop all text, waiting and to come; the ends still come. Idempotent."""

    @property
    def lacks_credit(self) -> bool:
        """Whether something waits, and all of it for credit."""

    def fail(self, failure: RequestFailed) -> None:
        """End the stream from the reader's side: behind what waits its reader is told why."""

    def close(self) -> None:
        """Stop listening: later events are dropped. Does not abort the request. Idempotent."""

    def statistics(self) -> StreamStatistics:
        """Return the counts so far."""


class EngineClient(Protocol):
    """What the API needs of an engine, wherever it runs. Loop only."""

    def submit(self, request: EngineRequest) -> EventStream:
        """Hand a request to the engine and return its events.

        Raises:
            ModelLoading, EngineFailed, Draining: the engine takes no requests (yet, any more).
            Overloaded, RateLimitExceeded: the queue is full; too many streams of the account are paused.
        """

    def abort(self, request_id: str) -> None:
        """Drop a request; its stream gets one `Finished(cancelled)` per open choice. Idempotent."""

    def pause(self, request_id: str) -> None:
        """Stop generating for a request; its KV blocks stay."""

    def resume(self, request_id: str) -> None:
        """Generate again for a paused request."""

    def card(self) -> ModelCard:
        """Return the loaded model's card.

        Raises:
            ModelLoading, EngineFailed: there is none (yet, any more).
        """

    def stats(self) -> EngineStats:
        """Return the counts of the last step."""

    def health(self) -> EngineHealth:
        """Return state and progress."""

    async def drain(self, timeout_s: float, *, only_begun: bool = False) -> None:
        """Refuse new requests, wait at most `timeout_s` for open ones; `only_begun` fails those without a token."""

    async def close(self) -> None:
        """Abort what is left and end the engine."""
