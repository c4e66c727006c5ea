"""Every answer that the server gives is accepted when it comes back with the next question, on every route."""

import json
from typing import Any

import pytest

from tests.api.chat_client import open_chat
from tests.api.routes.test_tools import ANSWERS, CALL, TOOLS, USER, app_with, message_of, pieces, streamed, whole
from tests.api.serving import client_of

ROUTES = {
    "/v1/chat/completions": lambda body: body["choices"],
    "/tokenize": lambda body: body["tokens"],
    "/apply-template": lambda body: body["prompt"],
    "/v1/chat/completions/input_tokens": lambda body: body["input_tokens"],
}
GIVEN = {
    **ANSWERS,
    "a cut call": CALL[: CALL.index("Ab") + 1],
    "a call without arguments": '<tool_call>\n{"name": "weather"',
    "a call of nothing": '<tool_call>{"name": "weather", "arguments": {}}</tool_call>',
    "an unknown function": '<tool_call>{"name": "no such", "arguments": {"a": 1}}</tool_call>',
    "a list": '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
    "a long integer": f'<tool_call>{{"name": "weather", "arguments": {{"a": {"9" * 65}}}}}</tool_call>',
}


async def accepted(app, messages: list[dict[str, Any]]) -> None:
    """Send a conversation to every route; with and without tools."""
    async with client_of(app) as client:
        for route, found in ROUTES.items():
            for tools in ({}, {"tools": TOOLS}):
                response = await client.post(route, json={"messages": messages, "max_tokens": 1, **tools})
                assert response.status_code == 200 and found(response.json()), response.text


def continued(message: dict[str, Any], *, has_results: bool) -> list[dict[str, Any]]:
    """The conversation behind an answer: what its calls gave, if they were made, and the next question."""
    calls = message.get("tool_calls", ()) if has_results else ()
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "12"} for call in calls]
    return [USER, message, *results, {"role": "user", "content": "And now?"}]


@pytest.mark.parametrize("has_results", [True, False])
@pytest.mark.parametrize("name", GIVEN)
async def test_an_answer_is_accepted(name, has_results):
    app, engine = await app_with(GIVEN[name], size=1000)
    message = (await whole(app, tools=TOOLS))["choices"][0]["message"]
    accumulated, _ = message_of(await streamed(app, tools=TOOLS))
    assert ("tool_calls" in message) == ("tool_calls" in accumulated)
    engine.port.script.answer = ["Fine."]
    await accepted(app, continued(message, has_results=has_results))
    await accepted(app, continued(accumulated, has_results=has_results))


@pytest.mark.parametrize("name", GIVEN)
async def test_an_answer_of_quire_v1_is_accepted(name):
    app, engine = await app_with(GIVEN[name], size=1000)
    message = (await whole(app, tools=TOOLS))["choices"][0]["message"]
    engine.port.script.answer = pieces("Fine.", 3)
    async with open_chat(engine, reasoning_parser="think") as chat:
        request = {"messages": continued(message, has_results=True), "tools": TOOLS}
        await chat.send(t="start", id="a", request=request)
        frames = await chat.receive_until("done", "error")
    assert frames[-1]["t"] == "done", frames


async def test_an_answer_that_the_limit_cut_is_accepted():
    """Wherever it was cut: in reasoning, in a mark, in a name, in arguments."""
    app, engine = await app_with(f"<think>Hm.</think>Wait.{CALL}", size=2)
    given = engine.port.script.answer
    for num_tokens in range(1, len(given)):
        engine.port.script.answer = given
        answer = (await whole(app, tools=TOOLS, max_tokens=num_tokens))["choices"][0]
        assert answer["finish_reason"] == "length"
        engine.port.script.answer = ["Fine."]
        async with client_of(app) as client:
            body = {"messages": continued(answer["message"], has_results=False), "max_tokens": 1}
            response = await client.post("/tokenize", json=body)
        assert response.status_code == 200, response.text


async def prompt_of(*messages: dict[str, Any]) -> str:
    app, _ = await app_with("Fine.")
    async with client_of(app) as client:
        response = await client.post("/apply-template", json={"messages": list(messages)})
    assert response.status_code == 200, response.text
    return response.json()["prompt"]


async def test_the_text_of_a_damaged_call_is_in_the_prompt():
    function = {"name": "weather", "arguments": '{"city": "Ab'}
    prompt = await prompt_of(USER, {"role": "assistant", "content": None, "tool_calls": [{"function": function}]})
    assert json.dumps({"name": "weather", "arguments": {"arguments": '{"city": "Ab'}}) in prompt


@pytest.mark.parametrize("answer", [
    {"content": None, "refusal": "I cannot."},
    {"content": "", "refusal": "I cannot."},
    {"content": [], "refusal": "I cannot."},
    {"content": [{"type": "refusal", "refusal": "I cannot."}], "refusal": None},
    {"content": [{"type": "text", "text": "I cannot."}], "refusal": None, "tool_calls": []},
], ids=str)  # fmt: skip
async def test_what_a_model_refused_is_text(answer):
    assert await prompt_of(USER, {"role": "assistant", **answer}) == await prompt_of(
        USER, {"role": "assistant", "content": "I cannot."}
    )


@pytest.mark.parametrize("answer", [
    {},
    {"content": None},
    {"content": []},
    {"content": "", "refusal": None, "tool_calls": None, "reasoning_content": None, "reasoning": None, "name": None},
    {"content": None, "function_call": None, "audio": None, "annotations": []},
    {"content": None, "tool_calls": [{"id": None, "function": {"name": "", "arguments": None}}]},
    {"content": "", "reasoning_content": "Hm."},
], ids=str)  # fmt: skip
async def test_an_answer_of_nothing_is_accepted(answer):
    assert "How warm" in await prompt_of(USER, {"role": "assistant", **answer}, USER)


async def test_a_result_without_its_call_is_accepted():
    assert "12" in await prompt_of(USER, {"role": "tool", "tool_call_id": None, "content": "12"})
