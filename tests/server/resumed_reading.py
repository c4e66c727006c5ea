"""Reads answers of a server over connections that break, and compares them with undisturbed ones."""

from __future__ import annotations

from typing import Any

import httpx

from tests.api.resuming import RESUME, Event, events_of, told

CHAT = "/v1/chat/completions"
FRAMINGS = ({"accept": "text/event-stream"}, {"accept": "application/x-ndjson"})


def check_every_number(client: httpx.Client, fields: dict[str, Any]) -> dict[str, Any]:
    """Break connections, and come back at each number; every token must come once. Return the answer."""
    undisturbed = told(events_of(client.post(CHAT, json=body(**fields), headers=FRAMINGS[1]).text))
    for count in (2, 9):
        path, had = read(client, fields, count)
        had = without_ends(had)
        rest = events_of(client.get(path, headers={"last-event-id": had[-1].id or ""}).text)
        assert same(told([*had, *rest])) == same(undisturbed)
    path, events = read(client, fields)
    whole = told(events)
    assert same(told(events)) == same(undisturbed)
    call_ids = ids_of_calls(told(events))
    # What a client has that stopped at a position; others stop inside what this one got at once.
    had_at = {event.id: without_ends(events[: index + 1]) for index, event in enumerate(events)}
    last = client.head(path).headers["x-quire-position"].split(".")
    afters = {*had_at, *(".".join([str(number), *last[1:]]) for number in range(int(last[0]) + 1))} - {"end"}
    for index, after in enumerate(sorted(afters)):
        rest = events_of(client.get(path, params={"after": after}, headers=FRAMINGS[index % 2]).text)
        if after in had_at:
            joined = told([*had_at[after], *rest])
            assert ids_of_calls(joined) == call_ids
            assert same(joined) == same(whole), after
        for choice, number in enumerate(map(int, after.split("."))):
            assert_rest(told(rest)["choices"][choice], whole["choices"][choice], number)
    assert int(last[0]) > 1
    return whole


def body(**fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "What is Quire?"}],
        "stream": True,
        "max_tokens": 30,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **fields,
    }


def read(client: httpx.Client, fields: dict[str, Any], count: int | None = None) -> tuple[str, list[Event]]:
    """Read a resumable answer, or break the connection after some events; return its path and the events."""
    with client.stream("POST", CHAT, json=body(**fields), headers=RESUME) as response:
        text = ""
        for piece in response.iter_text():
            text += piece
            if count is not None and text.count("\n\n") >= count:
                break
    return f"/v1/streams/{response.headers['x-quire-stream-id']}", events_of(text[: text.rindex("\n\n") + 2])


def without_ends(events: list[Event]) -> list[Event]:
    """The events but those that always come again."""
    return [event for event in events if any(one["finish_reason"] is None for one in event.payload.get("choices", []))]


def same(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs between two requests; how much of a prompt was cached does, and ids of calls.

    Beside calls a chunk of tokens without text has an empty content, and one that has text as well has not.
    """
    usage = {name: count for name, count in answer["usage"].items() if name != "prompt_tokens_details"}
    for choice in answer["choices"].values():
        choice["delta"]["content"] = choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls", {}).values():
            call["id"] = ""
    return {"choices": answer["choices"], "usage": usage}


def ids_of_calls(answer: dict[str, Any]) -> list[str]:
    deltas = [choice["delta"] for choice in answer["choices"].values()]
    return [call["id"] for delta in deltas for call in delta.get("tool_calls", {}).values()]


def assert_rest(rest: dict[str, Any], whole: dict[str, Any], number: int) -> None:
    """Check that a choice has the tokens behind a number, with their texts and log-probabilities."""
    assert rest.get("token_ids", []) == whole.get("token_ids", [])[number:]
    for name in ("content", "reasoning_content"):
        assert (whole["delta"].get(name) or "").endswith(rest["delta"].get(name) or "")
    rows, rest_rows = (one.get("logprobs", {}).get("content", []) for one in (whole, rest))
    assert rest_rows == rows[number:]
