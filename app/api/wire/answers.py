"""The shapes of responses, for the OpenAPI document and the tests that compare responses with it.

Responses are written by hand (`wire_format`, `choice_format`): nothing here is used for each token. Fields that may be
unset are those that a request asks for, or that only some answers have.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class PromptDetails(msgspec.Struct):
    """Tokens of the prompt by their origin."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    """Generated tokens by their kind."""

    reasoning_tokens: int


class UsageAnswer(msgspec.Struct):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class TimingsAnswer(msgspec.Struct):
    """The times of a request: milliseconds, and tokens per second."""

    queue_ms: float
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class FunctionAnswer(msgspec.Struct):
    """The function of a call; `arguments` is the text of the model, mostly the JSON of an object."""

    name: str
    arguments: str


class CallAnswer(msgspec.Struct):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionAnswer


class AnswerMessage(msgspec.Struct):
    """The message of a choice."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[CallAnswer] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One choice of a chat completion."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class PromptTokenAnswer(msgspec.Struct):
    """How likely a token was in the place of a token of the prompt; rank 1 is the most likely one."""

    logprob: float
    rank: int
    decoded_token: str


class ChatAnswer(msgspec.Struct):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptTokenAnswer] | None] | UnsetType = UNSET
    timings: TimingsAnswer | UnsetType = UNSET


class CompletionChoice(msgspec.Struct):
    """One choice of a completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptTokenAnswer] | None] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class CompletionAnswer(msgspec.Struct):
    """A completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer
    timings: TimingsAnswer | UnsetType = UNSET


class ModelAnswer(msgspec.Struct):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    kv_capacity_tokens: int
    format: str
    quantization: str | None
    default_sampling_params: dict[str, float]
    default_sampling_sources: dict[str, str]
    capabilities: dict[str, bool]


class ModelsAnswer(msgspec.Struct):
    """The list of models, which is one."""

    object: Literal["list"]
    data: list[ModelAnswer]


class EmbeddingAnswer(msgspec.Struct):
    """One vector: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(msgspec.Struct):
    """Token counts of the inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(msgspec.Struct):
    """The vectors of the inputs."""

    object: Literal["list"]
    data: list[EmbeddingAnswer]
    model: str
    usage: EmbeddingsUsage


class TokensAnswer(msgspec.Struct):
    """Token ids in the shape of vLLM, or `tokens` alone in that of llama.cpp."""

    tokens: list[Any]
    count: int | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    token_strs: list[str] | UnsetType | None = UNSET


class TextAnswer(msgspec.Struct):
    """The text of token ids, under the names of vLLM and llama.cpp."""

    prompt: str
    content: str


class PromptAnswer(msgspec.Struct):
    """The prompt of a chat as text."""

    prompt: str


class CountAnswer(msgspec.Struct):
    """The number of tokens in a prompt."""

    input_tokens: int


class VersionAnswer(msgspec.Struct):
    """The version of the server."""

    version: str


class HealthAnswer(msgspec.Struct):
    """The state of the server."""

    status: Literal["loading", "ready", "draining", "failed"]
    progress: float


class ErrorFields(msgspec.Struct):
    """An error in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct):
    """The body of every response with an error status."""

    error: ErrorFields
