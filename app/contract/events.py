"""What comes back from the engine thread: the events of requests, as plain immutable data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from app.contract.errors import ErrorInfo
from app.contract.packed_logprobs import Logprobs
from app.contract.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Why a choice ended; `cancelled` exists on quire.v1 only."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


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
