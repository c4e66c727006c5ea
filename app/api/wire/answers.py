"""The shapes of responses: what is written, and what the OpenAPI document says. Fields come in the order of the wire.

Fields that may be unset are those that a request asks for, or that only some answers have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.contract.events import ChoiceEnd, FinishReason, StopReason
from app.streaming.openai_shapes import TimingsAnswer, UsageAnswer


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


class ChatChoice(msgspec.Struct, kw_only=True):
    """One choice of a chat completion."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    token_ids: list[int] | UnsetType = UNSET
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: int | str | UnsetType = UNSET


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


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One choice of a completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    prompt_logprobs: list[dict[str, PromptTokenAnswer] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | UnsetType = UNSET


class CompletionAnswer(msgspec.Struct):
    """A completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer
    timings: TimingsAnswer | UnsetType = UNSET


class FunctionDelta(msgspec.Struct):
    """A piece of a call's function; the name comes with the first one."""

    name: str | UnsetType
    arguments: str


class CallDelta(msgspec.Struct, kw_only=True):
    """A piece of a call; its id and type come with the first one."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class MessageDelta(msgspec.Struct, kw_only=True):
    """The part of the message of a choice that a chunk adds."""

    role: Literal["assistant"] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """The part of a choice that a chunk adds: to its message (`delta`) in a chat, to its text in a completion."""

    index: int
    delta: MessageDelta | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: dict[str, Any] | None = None
    token_ids: Sequence[int] | UnsetType = UNSET
    finish_reason: FinishReason | None = None
    stop_reason: StopReason | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptTokenAnswer] | None] | UnsetType = UNSET


class UsageSoFar(msgspec.Struct):
    """The token counts of one choice, so far."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Chunk(msgspec.Struct, kw_only=True):
    """One chunk of a stream; `usage` is null in all but the last one, unless a request asks for the counts so far."""

    id: str
    object: Literal["chat.completion.chunk", "text_completion"]
    created: int
    model: str
    choices: list[ChunkChoice]
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptTokenAnswer] | None] | UnsetType = UNSET
    usage: UsageAnswer | UsageSoFar | UnsetType | None = UNSET
    timings: TimingsAnswer | UnsetType = UNSET


class DefaultsAnswer(msgspec.Struct):
    """Sampling defaults, and who says each of them."""

    params: dict[str, float]
    sources: dict[str, str]


class ExpertsAnswer(msgspec.Struct):
    """How many experts a layer has, and how many of them compute a token."""

    total: int
    per_token: int


class QuireAnswer(msgspec.Struct):
    """Facts of a model that no other server tells."""

    experts: ExpertsAnswer


class ModelAnswer(msgspec.Struct):
    """The served model, with the fields of OpenAI's and Anthropic's clients."""

    id: str
    object: Literal["model"]
    type: Literal["model"]
    display_name: str
    created: int
    created_at: str
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    max_input_tokens: int
    max_tokens: int
    lifecycle: Literal["active"]
    kv_capacity_tokens: int
    format: str
    quantization: str | None
    default_sampling_params: dict[str, float]
    default_sampling_sources: dict[str, str]
    capabilities: dict[str, bool]
    default_sampling_without_thinking: DefaultsAnswer | UnsetType = UNSET
    quire: QuireAnswer | UnsetType = UNSET


class ModelsAnswer(msgspec.Struct):
    """The list of models, which is one, with the fields of OpenAI's and Anthropic's clients."""

    object: Literal["list"]
    data: list[ModelAnswer]
    has_more: bool
    first_id: str
    last_id: str


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


def end_fields(end: ChoiceEnd) -> dict[str, Any]:
    """Return the fields of a choice that say why it has ended."""
    return {"finish_reason": end.reason, "stop_reason": UNSET if end.stop_reason is None else end.stop_reason}
