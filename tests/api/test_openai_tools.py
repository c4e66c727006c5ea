"""Tools and reasoning with the `openai` client library against a real server."""

import json

import openai
import pytest

from tests.api.serving import make_app
from tests.api.test_openai_client import client_for
from tests.fakes import FakeEngine, Script

MESSAGES = [{"role": "user", "content": "How warm is it in Oslo and in Rome?"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]  # fmt: skip
TEXT = (
    "<think>Two cities.</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)


@pytest.fixture
def engine():
    return FakeEngine(Script(answer=[TEXT[start : start + 4] for start in range(0, len(TEXT), 4)]))


@pytest.fixture
async def client(engine):
    async with client_for(await make_app(engine, reasoning_parser="think")) as client:
        yield client


def check(message):
    assert message.content == "Let me see."
    assert [(call.type, call.function.name) for call in message.tool_calls] == [("function", "weather")] * 2
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert len({call.id for call in message.tool_calls}) == 2


async def test_a_whole_answer_has_its_calls(client):
    answer = await client.chat.completions.create(model="guide", messages=MESSAGES, tools=TOOLS)
    check(answer.choices[0].message)
    assert answer.choices[0].message.reasoning_content == "Two cities."
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_the_stream_helper_accumulates_calls_by_index(client):
    async with client.chat.completions.stream(model="guide", messages=MESSAGES, tools=TOOLS) as stream:
        events = [event async for event in stream]
        completion = await stream.get_final_completion()
    check(completion.choices[0].message)
    assert completion.choices[0].finish_reason == "tool_calls"
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.index, event.name, event.arguments) for event in done] == [
        (0, "weather", '{"city": "Oslo"}'),
        (1, "weather", '{"city": "Rome"}'),
    ]
    chunks = [event.chunk.choices[0].delta for event in events if event.type == "chunk" and event.chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in chunks) == "Two cities."


async def test_calls_and_results_go_back_to_the_model(client, engine):
    answer = await client.chat.completions.create(model="guide", messages=MESSAGES, tools=TOOLS)
    message = answer.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": str(number)}
        for number, call in enumerate(message.tool_calls)
    ]
    await client.chat.completions.create(
        model="guide", messages=[*MESSAGES, message.model_dump(exclude_none=True), *results], tools=TOOLS
    )
    assert len(engine.requests[1].prompt_token_ids) > len(engine.requests[0].prompt_token_ids)


async def test_old_functions_are_refused_by_name(client):
    for name, value in (("functions", [{"name": "f"}]), ("function_call", {"name": "f"})):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="guide", messages=MESSAGES, **{name: value})
        assert (refused.value.code, refused.value.param) == ("unsupported_parameter", name)
