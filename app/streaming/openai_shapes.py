"""JSON shapes of OpenAI's API that all transports share: usage and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.contract.events import Usage
from app.contract.packed_logprobs import Logprobs

LOWEST_LOGPROB = -9999.0  # JSON has no -Infinity, and orjson would write null

TokenBytes = Callable[[int], bytes]
"""Returns the bytes of a token id."""


def usage_fields(usage: Usage) -> dict[str, object]:
    """Return `usage` in OpenAI's shape."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
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
