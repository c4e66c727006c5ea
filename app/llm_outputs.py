"""What the methods of `LLM` return, and how events of the engine become that. The thread of the LLM alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tqdm import tqdm

from app.contract.errors import (
    ContextLengthExceeded,
    EngineFailed,
    ErrorInfo,
    InvalidValue,
    KVCapacityExceeded,
    QueueTimeout,
    QuireError,
)
from app.contract.events import EngineEvent, Finished, PromptScored, RequestFailed, StopReason, TokenDelta, Usage
from app.contract.packed_logprobs import TokenLogprobs
from app.contract.sampling_params import SamplingParams

# Errors of the engine that are caused by the request or by a timeout, not by a failure.
_REJECTIONS = (QueueTimeout, KVCapacityExceeded, ContextLengthExceeded, InvalidValue)


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token, its rank (1 = most likely) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool; `arguments` is JSON if the call is complete and the model has made no mistake."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class CompletionOutput:
    """One completion. With `logprobs` set in the parameters, `logprobs` has one dict per token, {token id: Logprob}.

    Tokens that ended the completion are in `logprobs`, but not in `token_ids`; `cumulative_logprob` is the sum over the
    tokens of `logprobs`. A character that the end cuts is not in `text`; a completion of all token ids begins with it.
    `stop_reason` is the id of the stop token or the stop string that ended it, or "repetition"; None at EOS and at the
    limit. An answer to a chat has its reasoning in `reasoning` and its calls in `tool_calls`, and the rest in `text`.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: StopReason | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its `n` completions; `prompt` is None if token ids were given.

    With `best_of` and beam search the completions are sorted by score, best first. `usage` counts the tokens of all
    completions. With `prompt_logprobs` in the parameters, `prompt_logprobs` has a dict as in
    `CompletionOutput.logprobs` for each token of the prompt; None for the first one.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: Usage | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    @property
    def finished(self) -> bool:
        """Whether all completions have ended, which they have once a method returns."""
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def num_cached_tokens(self) -> int:
        """How many tokens of the prompt were found in the prefix cache."""
        return 0 if self.usage is None else self.usage.cached_tokens


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """The vector of one prompt."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """One prompt and its vector."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput


def new_outputs(params: SamplingParams) -> list[CompletionOutput]:
    """Return the empty outputs of a request."""
    if params.logprobs is None:
        return [CompletionOutput(choice) for choice in range(params.n)]
    return [CompletionOutput(choice, logprobs=[], cumulative_logprob=0.0) for choice in range(params.n)]


def apply_events(
    events: Iterable[EngineEvent],
    outputs: Mapping[str, RequestOutput],
    bar: tqdm,
    token_bytes: Callable[[int], bytes],
) -> list[RequestFailed]:
    """Add events to the outputs they belong to; return the failures among them."""
    failures = []
    for event in events:
        if isinstance(event, RequestFailed):
            failures.append(event)
            continue
        assert isinstance(event, (TokenDelta, Finished, PromptScored)), "an engine without a server sends no progress"
        request = outputs[event.request_id]
        if isinstance(event, PromptScored):
            request.prompt_logprobs = [None, *(_logprobs(entry, token_bytes) for entry in event.logprobs)]
            continue
        output = request.outputs[event.choice]
        if isinstance(event, TokenDelta):
            output.text += event.text
            output.token_ids += event.token_ids
            if output.logprobs is not None:
                output.logprobs += [_logprobs(entry, token_bytes) for entry in event.logprobs or ()]
                output.cumulative_logprob = sum(
                    (entry.logprob for entry in event.logprobs or ()), output.cumulative_logprob or 0.0
                )
        elif isinstance(event, Finished):
            output.finish_reason, output.stop_reason = str(event.reason), event.end.stop_reason
            num_before = 0 if request.usage is None else request.usage.completion_tokens
            request.usage = replace(event.usage, completion_tokens=num_before + event.usage.completion_tokens)
            if all(each.finish_reason for each in request.outputs):
                bar.update()
    return failures


def error_of(info: ErrorInfo) -> QuireError:
    """Return the exception for an error of the engine."""
    kind = next((kind for kind in _REJECTIONS if kind.code == info.code), EngineFailed)
    return kind(info.message, param=info.param)


def _logprobs(entry: TokenLogprobs, token_bytes: Callable[[int], bytes]) -> dict[int, Logprob]:
    best = zip(entry.top_token_ids, entry.top_logprobs, range(1, len(entry.top_logprobs) + 1), strict=True)
    return {
        token_id: Logprob(logprob, rank, token_bytes(token_id).decode("utf-8", "replace"))
        for token_id, logprob, rank in (*best, (entry.token_id, entry.logprob, entry.rank))
    }
