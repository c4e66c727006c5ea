"""Answers to `POST /v1/chat/completions`, of Quire and of other servers: what they may leave out is not missed."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

from app.client.opening import ServerRefused
from app.commands.answers.server_connection import reason
from app.commands.answers.server_errors import refusal
from app.commands.answers.streamed_text import AnswerEnd, TextStream
from app.contract.events import ChoiceEnd
from app.streaming.sse_format import SseDecoder

_CHUNK = 16384
_MAX_ERROR_BYTES = 65536
_LOST = "the connection to the server was lost before the end of the answer"
_FAILED = 500  # where a stream has begun with status 200


def read_answer(response: http.client.HTTPResponse) -> TextStream:
    """Yield the text of an answer; one that is not streamed although that was asked for is one piece.

    Raises:
        ServerRefused: the response is an error, has no answer, or ends before it.
    """
    end = AnswerEnd()
    try:
        if response.status != http.client.OK:
            raise refusal(response.status, response.read(_MAX_ERROR_BYTES), response.getheader("location"))
        is_whole = response.getheader("content-type", "").startswith("application/json")
        yield from _pieces(response.read(), end) if is_whole else _streamed(response, end)
    except (OSError, http.client.HTTPException) as error:
        why = "" if isinstance(error, http.client.IncompleteRead) else f" ({reason(error)})"
        raise ServerRefused(f"{_LOST}{why}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ServerRefused(f"the server's answer is not that of an OpenAI-compatible API: {error!r:.200}") from None
    return end


def _streamed(response: http.client.HTTPResponse, end: AnswerEnd) -> Iterator[str]:
    decoder = SseDecoder()
    while chunk := response.read1(_CHUNK):
        for data in decoder.feed(chunk):
            if data.strip() == "[DONE]":  # which some servers leave out
                return
            if data.strip():
                yield from _pieces(data.encode(), end)
    if end.choice is None:
        raise ServerRefused(_LOST)


def _pieces(data: bytes, end: AnswerEnd) -> Iterator[str]:
    """Yield the text of one JSON object of an answer, and note what it says of the end."""
    fields = json.loads(data)
    if fields.get("error"):
        raise refusal(_FAILED, data)
    count_usage(end, fields.get("usage"))
    for choice in fields.get("choices") or ():
        if choice.get("finish_reason"):
            end.choice = ChoiceEnd(choice["finish_reason"], choice.get("stop_reason"))
        said = choice.get("delta") or choice.get("message") or {}
        yield _text(said.get("content"))


def _text(content: object) -> str:
    """Return the text of `content`: Mistral's models that reason send a list of parts, of which some are thoughts."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part["type"] == "text")
    if not isinstance(content, str | None):
        raise TypeError(f"content is {content!r:.100}")
    return content or ""


def count_usage(end: AnswerEnd, usage: dict[str, Any] | None) -> None:
    """Note the token counts that a server has sent."""
    if usage is not None:
        end.prompt_tokens = count_of(usage.get("prompt_tokens"))
        end.completion_tokens = count_of(usage.get("completion_tokens"))


def count_of(given: object) -> int | None:
    """Return a number that a server has sent; None for anything else."""
    return given if isinstance(given, int) else None
