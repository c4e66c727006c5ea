"""The events of requests, which the engine thread sends to the event loop, as plain immutable data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from app.contract.errors import ErrorInfo
from app.contract.packed_logprobs import Logprobs
from app.contract.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Why a choice ended; `cancelled` exists on quire.v1 only, and the API makes `tool_calls` of `stop`."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"


StopReason = int | str
"""What ended a choice, beyond its finish reason: a stop token's id, a stop string, or `REPETITION`."""
REPETITION = "repetition"


class ChoiceEnd(NamedTuple):
    """Why a choice ended; `stop_reason` is None if EOS, the limit or the client has ended it."""

    reason: FinishReason
    stop_reason: StopReason | None = None


class TokenDelta(NamedTuple):
    """New tokens of one choice and the text that they complete (possibly none).

    `first` is the number of the first token; tokens of a choice are numbered 1, 2, 3 ... without gaps. `logprobs` of
    the last delta includes the tokens that ended the choice, which are not in `token_ids`.
    """

    request_id: str
    choice: int
    first: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts: prompt, generated (stop text included), prompt tokens found in the prefix cache.

    `preemptions` counts how often the request was preempted, `lost_tokens` the tokens computed again for it.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    preemptions: int = 0
    lost_tokens: int = 0


def total_usage(usages: Iterable[Usage]) -> Usage:
    """Return the sums of the token counts of several requests; zeros without any."""
    found = tuple(usages)
    return Usage(
        sum(usage.prompt_tokens for usage in found),
        sum(usage.completion_tokens for usage in found),
        sum(usage.cached_tokens for usage in found),
        sum(usage.preemptions for usage in found),
        sum(usage.lost_tokens for usage in found),
    )


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from the request's arrival to the first step, to the first token and to the end of one choice."""

    queue_s: float
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one choice; exactly one per choice unless the request failed.

    `usage.completion_tokens` counts the choice's tokens; the other counts are those of the request, the same for each
    choice. `params` are the request's parameters.
    """

    request_id: str
    choice: int
    end: ChoiceEnd
    usage: Usage
    timings: Timings
    params: SamplingParams | None = None

    @property
    def reason(self) -> FinishReason:
        """The finish reason."""
        return self.end.reason


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The end of a request that failed."""

    request_id: str
    error: ErrorInfo


class Phase(StrEnum):
    """The phase of a request that is generating no tokens now, or generates them again."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PAUSED = "paused"
    PREEMPTED = "preempted"


class Progress(NamedTuple):
    """The progress of a request: `done` of its `total` tokens (prompt and output so far) have been computed.

    Sent when the deltas do not show it: while the request is queued, in prefill, paused or preempted, and when it
    returns to decode. `ahead` is how many requests are before one that has not started, in the order of the policy.
    """

    request_id: str
    phase: Phase
    done: int
    total: int
    ahead: int | None = None


class Embedded(NamedTuple):
    """The end of a request with `pooling`: its vector, float32 in the machine's byte order, and its prompt's length."""

    request_id: str
    vector: bytes
    num_tokens: int


class PromptScored(NamedTuple):
    """The log-probabilities of a prompt's tokens, from the second on: the first one has none.

    Sent once, before the first tokens, to a request with `prompt_logprobs`. `choice` is the first choice of the prompt:
    0, except in an answer to several prompts.
    """

    request_id: str
    logprobs: Logprobs
    choice: int = 0


EngineEvent = TokenDelta | Finished | RequestFailed | Progress | Embedded | PromptScored
