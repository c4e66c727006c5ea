"""A client of resumable streams: reads events with their ids, and joins what it was told."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import httpx

RESUME = {"x-quire-resume": "1"}
ONCE = ("role", "id", "type", "name", "object", "created", "model", "index", "finish_reason", "stop_reason", "usage")


class Event(NamedTuple):
    """An event of SSE, or a line of JSON, whose id is in its field."""

    id: str | None
    data: str

    @property
    def payload(self) -> dict[str, Any]:
        return {} if self.data == "[DONE]" else json.loads(self.data)


def events_of(body: str) -> list[Event]:
    """The events of a body, of server-sent events or lines of JSON."""
    if body.startswith("{"):
        return [Event(json.loads(line).get("after"), line) for line in body.splitlines()]
    found = []
    for block in body.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        found.append(Event(fields.get("id"), fields["data"]))
    return found


def told(events: list[Event]) -> dict[str, Any]:
    """What a client has of an answer: texts and lists joined, by choice; ends and counts as they came last."""
    answer: dict[str, Any] = {"choices": {}}
    for event in events:
        payload = event.payload
        for choice in payload.pop("choices", []):
            join(answer["choices"].setdefault(choice["index"], {}), choice)
        payload.pop("after", None)
        answer |= {name: value for name, value in payload.items() if value is not None}
    return answer


def join(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        if name == "tool_calls":
            for call in value:
                join(whole.setdefault(name, {}).setdefault(call["index"], {}), call)
        elif isinstance(value, dict) and isinstance(whole.get(name), dict):
            join(whole[name], value)
        elif value is not None:
            whole[name] = value if name in ONCE or whole.get(name) is None else whole[name] + value


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    """A streamed answer to its end."""
    body = {"stream": True, "stream_options": {"include_usage": True}, **body}
    response = await client.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response
