"""JSON shapes of OpenAI's API that all transports share: usage and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from app.contract.events import Timings, Usage
from app.contract.packed_logprobs import Logprobs

LOWEST_LOGPROB = -9999.0  # JSON has no -Infinity, and orjson would write null

TokenBytes = Callable[[int], bytes]
"""Returns the bytes of a token id."""


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

    @classmethod
    def of(cls, usage: Usage, reasoning_tokens: int | None = None) -> UsageAnswer:
        """Return `usage` in OpenAI's shape, with the number of reasoning tokens if they are counted."""
        return cls(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            PromptDetails(usage.cached_tokens),
            UNSET if reasoning_tokens is None else CompletionDetails(reasoning_tokens),
        )


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

    @classmethod
    def of(cls, usage: Usage, span: Timings) -> TimingsAnswer:
        """Return the times of a request under llama.cpp's names.

        `prompt_n` are the prompt's tokens that were computed, without the `cache_n` of the prefix cache. `predicted_ms`
        begins with the first token.
        """
        num_computed = usage.prompt_tokens - usage.cached_tokens
        return cls(
            round(span.queue_s * 1000, 3),
            usage.cached_tokens,
            *_phase(num_computed, span.first_token_s - span.queue_s),
            *_phase(usage.completion_tokens, span.total_s - span.first_token_s),
        )


def _phase(count: int, seconds: float) -> tuple[int, float, float, float]:
    """Return a number of tokens and its time, that of one of them, and how many take a second."""
    per_second = count / seconds if seconds > 0 else 0.0
    return count, round(seconds * 1000, 3), round(seconds * 1000 / max(count, 1), 3), round(per_second, 3)


def logprobs_entries(logprobs: Logprobs, token_bytes: TokenBytes) -> list[dict[str, Any]]:
    """Return the entries of a chat answer's `logprobs.content`, one for each token."""
    entries = []
    for token in logprobs:
        entry = _fields(token_bytes(token.token_id), token.logprob)
        best = zip(token.top_token_ids, token.top_logprobs, strict=True)
        entry["top_logprobs"] = [_fields(token_bytes(token_id), logprob) for token_id, logprob in best]
        entries.append(entry)
    return entries


def token_name(token: bytes) -> str:
    """Return a token's text, or `bytes:\\xe7\\x8c` for bytes that are not complete characters."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def finite(logprob: float) -> float:
    """Return the log-probability, at least `LOWEST_LOGPROB`."""
    return max(logprob, LOWEST_LOGPROB)


def _fields(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token.decode("utf-8", "replace"), "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(token)}
