"""The APIs whose streams are measured: how a chat is asked for over HTTP, and how its events are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

MAX_TOKENS = 1_000_000  # of a message, which must name a limit; a scripted answer ends when the client leaves


class StreamApi(NamedTuple):
    """One API.

    Attributes:
        path: of its route.
        fields: the body of a request, of that of a chat.
        read: the text of an event, and whether the event ends the answer.
        has_done: whether `[DONE]` ends its server-sent events.
    """

    path: str
    fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], tuple[str, bool]]
    has_done: bool = False


def _read_chunk(payload: Mapping[str, Any]) -> tuple[str, bool]:
    texts = [choice["delta"].get("content") or "" for choice in payload["choices"]]
    return "".join(texts), any(choice["finish_reason"] is not None for choice in payload["choices"])


def _with_input(chat: Mapping[str, Any]) -> dict[str, Any]:
    return {"input" if name == "messages" else name: value for name, value in chat.items()}


def _read_response_event(payload: Mapping[str, Any]) -> tuple[str, bool]:
    if payload["type"] == "response.output_text.delta":
        return payload["delta"], False
    return "", payload["type"] in ("response.completed", "response.incomplete")


def _with_limit(chat: Mapping[str, Any]) -> dict[str, Any]:
    return {"max_tokens": MAX_TOKENS, **chat}


def _read_message_event(payload: Mapping[str, Any]) -> tuple[str, bool]:
    if payload["type"] == "content_block_delta":
        return payload["delta"].get("text", ""), False
    return "", payload["type"] == "message_stop"


CHAT = StreamApi("/v1/chat/completions", dict, _read_chunk, has_done=True)
RESPONSES = StreamApi("/v1/responses", _with_input, _read_response_event)
MESSAGES = StreamApi("/v1/messages", _with_limit, _read_message_event)
