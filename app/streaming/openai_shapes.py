"""JSON shapes of OpenAI's API that all transports share: usage and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.contract.events import Timings, Usage
from app.contract.packed_logprobs import Logprobs

LOWEST_LOGPROB = -9999.0  # JSON has no -Infinity, and orjson would write null

TokenBytes = Callable[[int], bytes]
"""Returns the bytes of a token id."""


def usage_fields(usage: Usage, reasoning_tokens: int | None = None) -> dict[str, object]:
    """Return `usage` in OpenAI's shape, with the number of reasoning tokens if they are counted."""
    fields: dict[str, object] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if reasoning_tokens is not None:
        fields["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return fields


def timing_fields(usage: Usage, span: Timings) -> dict[str, float]:
    """Return the times of a request under llama.cpp's names: milliseconds, and tokens per second.

    `prompt_n` are the prompt's tokens that were computed, without the `cache_n` of the prefix cache. `predicted_ms`
    begins with the first token.
    """
    num_computed = usage.prompt_tokens - usage.cached_tokens
    fields = {"queue_ms": span.queue_s * 1000, "cache_n": usage.cached_tokens}
    fields |= _phase("prompt", num_computed, span.first_token_s - span.queue_s)
    fields |= _phase("predicted", usage.completion_tokens, span.total_s - span.first_token_s)
    return {name: round(value, 3) for name, value in fields.items()}


def _phase(name: str, count: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / max(count, 1),
        f"{name}_per_second": count / seconds if seconds > 0 else 0.0,
    }


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
