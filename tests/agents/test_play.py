"""The player reads what a server sends over each wire, and says what went wrong."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.agents import play as player
from tests.agents.play import Answer, play

TRANSCRIPT: dict[str, Any] = {
    "wire": "chat",
    "path": "/chat",
    "headers": {"x-agent": "one"},
    "list": "messages",
    "ignored": [],
    "body": {"model": "served", "max_tokens": 99, "tools": [1]},
    "requests": [
        {"adds": [{"role": "user", "content": "title"}], "is_alone": True, "body": {"tools": None}},
        {"adds": [{"role": "user", "content": "a"}]},
        {"adds": [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]},
    ],
}
USAGES = {
    "chat": {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5}}},
    "responses": {
        "type": "response.completed",
        "response": {"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 5}}},
    },
    "messages": {"type": "message_delta", "usage": {"input_tokens": 4, "cache_read_input_tokens": 5}},
}


class Server:
    """Answers every request alike, and keeps their bodies."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self._response = httpx.Response(500)

    def answer_with(self, *events: dict[str, Any], status: int = 200, ignored: str = "") -> None:
        """Answer with these events from now on."""
        text = "".join(f"event: x\ndata: {json.dumps(event)}\n\n" for event in events) + ": beat\n\ndata: [DONE]\n\n"
        self._response = httpx.Response(status, text=text, headers={"x-quire-ignored": ignored})

    def respond(self, request: httpx.Request) -> httpx.Response:
        """The response to a request."""
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "guide"}]})
        self.sent.append(json.loads(request.content))
        return self._response


@pytest.fixture
def server(monkeypatch) -> Server:
    """The server that the player's client reaches, whatever the address."""
    server, client = Server(), httpx.AsyncClient

    def connected(**options: Any) -> httpx.AsyncClient:
        return client(transport=httpx.MockTransport(server.respond), **options)

    monkeypatch.setattr(player.httpx, "AsyncClient", connected)
    return server


async def test_requests_have_all_messages_and_the_served_model(server):
    server.answer_with(USAGES["chat"], ignored="tools%5B8%5D, x")
    answers = await play(TRANSCRIPT, "http://test", max_tokens=4)
    assert answers == [Answer(200, ("tools[8]", "x"), 9, 5, None, number == 0) for number in range(3)]
    contents = [[message["content"] for message in body["messages"]] for body in server.sent]
    assert contents == [["title"], ["a"], ["a", "b", "c"]]
    fields = [(body["model"], body["max_tokens"], "tools" in body) for body in server.sent]
    assert fields == [("guide", 4, False), ("guide", 4, True), ("guide", 4, True)]


@pytest.mark.parametrize("wire", USAGES)
async def test_the_usage_of_each_wire_is_read(server, wire):
    server.answer_with({"type": "x"}, USAGES[wire])
    answers = await play({**TRANSCRIPT, "wire": wire}, "http://test")
    assert {(answer.prompt_tokens, answer.cached_tokens) for answer in answers} == {(9, 5)}


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (400, {"error": {"message": "no"}}),
        (200, {"error": {"message": "no"}}),
        (200, {"type": "response.failed"}),
        (200, {"type": "x"}),
    ],
)
async def test_what_went_wrong_is_told(server, status, event):
    server.answer_with(event, status=status)
    answers = await play(TRANSCRIPT, "http://test")
    assert {answer.status for answer in answers} == {status}
    assert all(answer.error and json.dumps(event)[1:-1] in answer.error for answer in answers)
