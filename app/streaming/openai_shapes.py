"""OpenAI's JSON shapes that every transport shares: usage and log-probabilities."""

from __future__ import annotations

from app.messages import Logprob, TokenLogprobs, Usage

LOWEST_LOGPROB = -9999.0  # JSON has no -Infinity, and orjson would write null


def usage_fields(usage: Usage) -> dict[str, object]:
    """Return `usage` as OpenAI's clients read it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def token_logprobs_fields(entry: TokenLogprobs) -> dict[str, object]:
    """Return a token's entry of a chat answer's `logprobs.content`."""
    return {**_fields(entry.chosen), "top_logprobs": [_fields(other) for other in entry.top]}


def token_text(logprob: Logprob) -> str:
    """Return a token's text; bytes that are no whole characters become U+FFFD."""
    return logprob.token.decode("utf-8", "replace")


def token_name(logprob: Logprob) -> str:
    """Return a token's text, or `bytes:\\xe7\\x8c` where its bytes are no whole characters."""
    try:
        return logprob.token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in logprob.token)


def finite(logprob: Logprob) -> float:
    """Return the log-probability as JSON can carry it."""
    return max(logprob.logprob, LOWEST_LOGPROB)


def _fields(logprob: Logprob) -> dict[str, object]:
    return {"token": token_text(logprob), "logprob": finite(logprob), "bytes": list(logprob.token)}
