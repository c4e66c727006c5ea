"""The response object of OpenAI's Responses API, in each of its states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.api.responses.asked import AskedResponse
from app.api.responses.output_items import OutputItem
from app.contract.errors import Draining, ErrorInfo, Overloaded, RateLimitExceeded
from app.contract.events import FinishReason, Timings, Usage
from app.streaming.openai_shapes import TimingsAnswer

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_STATUSES: Final[dict[FinishReason, Status]] = {
    FinishReason.STOP: "completed",
    FinishReason.TOOL_CALLS: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.CANCELLED: "cancelled",
}
# The codes of errors on which clients act; all others are one to them. They are not those of errors with a status.
_CODES: Final = {
    "context_length_exceeded": "context_length_exceeded",
    **dict.fromkeys((Overloaded.code, Draining.code, RateLimitExceeded.code), "rate_limit_exceeded"),
}


class InputDetails(msgspec.Struct):
    """Tokens of the prompt by their origin. Clients require `cache_write_tokens`, which are never billed here."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Generated tokens by their kind."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage, reasoning_tokens: int | None) -> ResponseUsage:
        """Return token counts in the shape of this API; reasoning that is not counted has no tokens."""
        return cls(
            usage.prompt_tokens,
            InputDetails(usage.cached_tokens),
            usage.completion_tokens,
            OutputDetails(reasoning_tokens or 0),
            usage.prompt_tokens + usage.completion_tokens,
        )


class ResponseError(msgspec.Struct):
    """An error that has ended a response: `code` is one that clients know, `quire_code` ours."""

    code: str
    message: str
    quire_code: str

    @classmethod
    def of(cls, error: ErrorInfo) -> ResponseError:
        """Return an error in the shape of this API. Clients read the time after which they try again in its message."""
        message = error.message
        if error.retry_after_s is not None:
            message += f" Please try again in {error.retry_after_s}s."
        return cls(_CODES.get(error.code, "server_error"), message, error.code)


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class RepeatedReasoning(msgspec.Struct):
    """The request's `reasoning`."""

    effort: str | None
    summary: str | None


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response; `usage` is null until its end, and after an error."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: Sequence[OutputItem]
    usage: ResponseUsage | None = None
    previous_response_id: str | None
    instructions: Any
    tools: Any
    tool_choice: Any
    parallel_tool_calls: bool
    max_tool_calls: int | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    text: Any
    reasoning: RepeatedReasoning
    truncation: Literal["auto", "disabled"]
    store: bool
    background: bool
    service_tier: Literal["default"] = "default"
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    timings: TimingsAnswer | UnsetType = UNSET


def begun_response(asked: AskedResponse, status: Literal["queued", "in_progress"]) -> ResponseObject:
    """Return a response without output, for the first events of a stream.

    Instructions, tools and the schema of the text can be long. Twice in front of the first token they would be more
    than may be pending for a client, so they come with the end alone.
    """
    return ResponseObject(
        status=status, output=(), instructions=None, tools=(), text=asked.short_text, **_repeated(asked)
    )


def running_response(asked: AskedResponse, status: Literal["queued", "in_progress"]) -> ResponseObject:
    """Return a response that has not ended, for a client that asks for it: its output comes with its end."""
    return ResponseObject(status=status, output=(), **_long_fields(asked), **_repeated(asked))


def ended_response(
    asked: AskedResponse,
    output: Sequence[OutputItem],
    reason: FinishReason,
    usage: Usage,
    span: Timings,
    reasoning_tokens: int | None = None,
) -> ResponseObject:
    """Return a response that has ended; its time is a function of its span, so that it is the same when read again."""
    return ResponseObject(
        status=_STATUSES[reason],
        completed_at=int(asked.created_at + span.total_s),
        incomplete_details=IncompleteDetails("max_output_tokens") if reason is FinishReason.LENGTH else None,
        output=output,
        usage=ResponseUsage.of(usage, reasoning_tokens),
        timings=TimingsAnswer.of(usage, span) if asked.has_timings else UNSET,
        **_long_fields(asked),
        **_repeated(asked),
    )


def failed_response(asked: AskedResponse, output: Sequence[OutputItem], error: ErrorInfo) -> ResponseObject:
    """Return a response that an error has ended, with the output so far."""
    return ResponseObject(
        status="failed", output=output, error=ResponseError.of(error), **_long_fields(asked), **_repeated(asked)
    )


def cancelled_response(asked: AskedResponse, output: Sequence[OutputItem]) -> ResponseObject:
    """Return a response that its client has cancelled, with the output so far."""
    return ResponseObject(status="cancelled", output=output, **_long_fields(asked), **_repeated(asked))


def _long_fields(asked: AskedResponse) -> dict[str, Any]:
    return {"instructions": asked.instructions, "tools": asked.tools, "text": asked.text}


def _repeated(asked: AskedResponse) -> dict[str, Any]:
    return {
        "id": asked.response_id,
        "created_at": asked.created_at,
        "model": asked.model,
        "previous_response_id": asked.previous_response_id,
        "tool_choice": asked.tool_choice,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "max_tool_calls": asked.max_tool_calls,
        "max_output_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "presence_penalty": asked.presence_penalty,
        "frequency_penalty": asked.frequency_penalty,
        "top_logprobs": asked.top_logprobs,
        "reasoning": RepeatedReasoning(asked.reasoning.effort, asked.reasoning.summary),
        "truncation": asked.truncation,
        "store": asked.store,
        "background": asked.background,
        "metadata": dict(asked.metadata),
        "user": asked.user,
        "safety_identifier": asked.safety_identifier,
        "prompt_cache_key": asked.prompt_cache_key,
    }
