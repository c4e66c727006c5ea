"""Answers that must be calls: what cuts them off, on each transport."""

import pytest

from tests.api.chat_client import open_chat
from tests.api.test_tools import (
    TOOLS,
    app_with_grammars,
    load_grammars,
    message_of,
    pieces,
    streamed,
    whole,
    without_ids,
)
from tests.fakes import FakeEngine, Script


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
        load_grammars(chat.app)
        await chat.start(**required)
        frames = await chat.receive_until("done")
    message = choice["message"]
    assert (message["content"] or "", choice["finish_reason"]) == ("", "stop")
    assert [call["function"]["arguments"] for call in message.get("tool_calls", ())] == arguments
    streamed_message, reason = message_of(chunks)
    assert (without_ids(streamed_message), reason) == (without_ids(message), "stop")
    assert "".join(frame["x"] for frame in frames if frame["t"] == "delta") == ""
    assert [frame["finish_reason"] for frame in frames if frame["t"] == "finish"] == ["stop"]
