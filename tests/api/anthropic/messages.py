"""Requests of the Messages API in tests, and what a client accumulates of a stream."""

from __future__ import annotations

import json
from typing import Any

from starlette.applications import Starlette

from app.api.anthropic.parse_message import parse_message
from app.api.wire.api_request import ApiRequest
from tests.api.serving import client_of, parse, raw

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
USER: dict[str, Any] = {"role": "user", "content": "How warm is it?"}
BODY: dict[str, Any] = {"max_tokens": 250, "messages": [USER]}
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [{"name": "weather", "description": "The weather.", "input_schema": CITY}]
DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}


def events_of(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each with its name in its data, too."""
    assert body.endswith(b"\n\n") and b"\r" not in body
    found = []
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.splitlines()
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client accumulates of a whole stream; asserts that the events come as they must.

    One start and one end; blocks begin in order, do not overlap, are not empty, and have deltas of their own types; a
    signature comes once, as the last of its block.
    """
    first, *rest = [event for event in events if event["type"] != "ping"]
    assert first["type"] == "message_start"
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    *changes, delta, stop = rest
    content = blocks_of(changes)
    assert [delta["type"], stop] == ["message_delta", {"type": "message_stop"}]
    return message | {"content": content, **delta["delta"], "usage": delta["usage"]}


def blocks_of(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a message, of the events between its start and its end."""
    blocks: list[dict[str, Any]] = []
    pieces: list[tuple[str, str]] = []
    is_open = False
    for change in changes:
        kind, index = change["type"], change["index"]
        if kind == "content_block_start":
            assert not is_open and index == len(blocks)
            is_open, pieces = True, []
            blocks.append(change["content_block"])
            continue
        assert is_open and index == len(blocks) - 1
        if kind == "content_block_stop":
            is_open = False
            blocks[-1] = _ended(blocks[-1], pieces)
            continue
        assert kind == "content_block_delta"
        delta = dict(change["delta"])
        name = delta.pop("type")
        [(field, text)] = delta.items()
        assert DELTAS[blocks[-1]["type"]][name] == field and text
        pieces.append((field, text))
    assert not is_open
    return blocks


def _ended(block: dict[str, Any], pieces: list[tuple[str, str]]) -> dict[str, Any]:
    joined: dict[str, str] = {}
    for field, text in pieces:
        joined[field] = joined.get(field, "") + text
    if block["type"] == "tool_use":
        assert block["input"] == {}
        return block | {"input": _object(joined.get("partial_json", ""))}
    assert all(block[field] == "" for field in joined)
    if block["type"] == "thinking":
        assert [field for field, _ in pieces].index("signature") == len(pieces) - 1
    return block | joined


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def whole(app: Starlette, **fields: Any) -> dict[str, Any]:
    """The JSON body of an answer."""
    async with client_of(app) as client:
        response = await client.post(PATH, json=BODY | fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def streamed(app: Starlette, **fields: Any) -> list[dict[str, Any]]:
    """The events of an answer."""
    async with client_of(app) as client:
        response = await client.post(PATH, json=BODY | {"stream": True} | fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events_of(response.content)


async def parsed(app: Starlette, **fields: Any) -> ApiRequest:
    """The request that a body becomes."""
    return await parse(raw(BODY | fields), app.state.context, parse_message)


async def prompt_of(app: Starlette, **fields: Any) -> str:
    """The prompt of a body as text."""
    tokenizer = app.state.context.text.tokenizer
    text: str = tokenizer.decode((await parsed(app, **fields)).request.prompt_token_ids, skip_special_tokens=False)
    return text
