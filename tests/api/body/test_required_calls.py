"""Answers that must be calls: what cuts them off, on each transport, and the fields that contradict them."""

import pytest

from tests.api.chat_client import open_chat
from tests.api.routes.test_tools import (
    CALL,
    TOOLS,
    USER,
    app_with_grammars,
    message_of,
    pieces,
    streamed,
    whole,
    without_ids,
)
from tests.api.serving import client_of, with_grammars
from tests.fakes import FakeEngine, Script


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "a+"}, "regex"),
        ({"guided_json": {}}, "guided_json"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
    ],
)
async def test_an_answer_that_must_call_is_nothing_else(choice, fields, param):
    engine = FakeEngine(Script(answer=[CALL]))
    app = await app_with_grammars(engine)
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": choice, **fields}
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json=body)
        free = await client.post("/v1/chat/completions", json={**body, "tool_choice": "auto"})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", param)
    assert error["message"].startswith(f"{param} and tool_choice both say what the answer must be")
    assert free.status_code == 200 and len(engine.requests) == 1


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<tool_", []),
        ('<tool_call>\n{"name": "wea', []),
        ('<tool_call>\n{"name": "weather", ', [""]),
        ('<tool_call>\n{"name": "weather", "arguments": {"city": "Ab', ['{"city": "Ab']),
    ],
)
async def test_a_required_call_that_is_cut_is_no_content(text, arguments, size):
    engine = FakeEngine(Script(answer=pieces(text, size)))
    app, required = await app_with_grammars(engine), {"tools": TOOLS, "tool_choice": "required"}
    choice, chunks = (await whole(app, **required))["choices"][0], await streamed(app, **required)
    async with open_chat(engine) as chat:
        with_grammars(chat.app)
        await chat.start(**required)
        frames = await chat.receive_until("done")
    message = choice["message"]
    assert (message["content"] or "", choice["finish_reason"]) == ("", "stop")
    assert [call["function"]["arguments"] for call in message.get("tool_calls", ())] == arguments
    streamed_message, reason = message_of(chunks)
    assert (without_ids(streamed_message), reason) == (without_ids(message), "stop")
    assert "".join(frame["x"] for frame in frames if frame["t"] == "delta") == ""
    assert [frame["finish_reason"] for frame in frames if frame["t"] == "finish"] == ["stop"]
