"""Answers of a real model, read over connections that break: every token once, bytes equal to an undisturbed stream."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.api.resuming import RESUME, Event, events_of, told
from tests.server.processes import HANG_S, serving

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded, two choices": {"temperature": 1, "seed": 7, "n": 2},
    "stop strings": {"temperature": 0, "stop": ["er", "never there"], "max_tokens": 60},
    "characters of several tokens": {"seed": 3, "regex": "(猫|é|\U0001f642){8}"},
    "log-probabilities": {"temperature": 0, "logprobs": True, "top_logprobs": 3},
    "a schema": {"seed": 5, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a server with the embedded model."""
    with serving() as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            yield client


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is Quire?"}]
    return {"messages": messages, "stream": True, "max_tokens": 30, "stream_options": {"include_usage": True}, **fields}


def broken_after(client: httpx.Client, count: int, fields: dict[str, Any]) -> tuple[str, list[Event]]:
    """Read some events of a resumable stream, then close the connection.

    Returns the stream's path, and the events but those that always come again.
    """
    with client.stream("POST", "/v1/chat/completions", json=body(**fields), headers=RESUME) as response:
        text = ""
        for piece in response.iter_text():
            text += piece
            if text.count("\n\n") >= count:
                break
    events = events_of(text[: text.rindex("\n\n") + 2])
    had = [event for event in events if any(one["finish_reason"] is None for one in event.payload.get("choices", []))]
    return f"/v1/streams/{response.headers['x-quire-stream-id']}", had


def same(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs between two requests; how much of a prompt was cached does."""
    usage = {name: count for name, count in answer["usage"].items() if name != "prompt_tokens_details"}
    return {"choices": answer["choices"], "usage": usage}


@pytest.mark.parametrize("name", CASES)
def test_every_token_comes_once_where_a_connection_breaks_and_at_each_number(client: httpx.Client, name: str):
    fields = CASES[name]
    whole = told(events_of(client.post("/v1/chat/completions", json=body(**fields)).text))
    for count in (2, 9):
        path, had = broken_after(client, count, fields)
        rest = events_of(client.get(path, headers={"last-event-id": had[-1].id or ""}).text)
        assert same(told([*had, *rest])) == same(whole)
    last = int(client.head(path).headers["x-quire-position"].split(".")[0])
    others = [0] * (fields.get("n", 1) - 1)
    assert last > 1
    contents = []
    for number in range(last + 1):
        after = ".".join(map(str, [number, *others]))
        answer = told(events_of(client.get(path, params={"after": after}).text))
        contents.append(answer["choices"][0]["delta"].get("content") or "")
    assert contents[0] == whole["choices"][0]["delta"]["content"]
    assert all(before.endswith(after) for before, after in pairwise(contents))
