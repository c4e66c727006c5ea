"""`client.responses` of the `openai` client library against a real server."""

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.api.serving import make_app, with_grammars
from tests.api.test_openai_client import client_for
from tests.fakes import FakeEngine, Script

ANSWER = ["He", "llo", " 猫", "\u2028", "data: x\n\n", "[DONE]"]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "parameters": CITY, "strict": False},
    {
        "type": "namespace",
        "name": "files",
        "description": "Files.",
        "tools": [{"type": "function", "name": "open", "parameters": CITY, "strict": False}],
    },
    {"type": "custom", "name": "patch", "description": "Patches a file."},
    {"type": "web_search"},
]


def call(name: str, arguments: dict[str, str]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


CALLS = "\n".join(
    (call("weather", {"city": "Oslo"}), call("files__open", {"city": "Rome"}), call("patch", {"input": "+a"}))
)
TEXT = f"<think>Two cities.</think>\n\nLet me see.\n{CALLS}"


def engine_that_says(text: str) -> FakeEngine:
    return FakeEngine(Script(answer=[text[start : start + 4] for start in range(0, len(text), 4)]))


@pytest.fixture
def engine():
    return FakeEngine(Script(answer=ANSWER))


@pytest.fixture
async def client(engine):
    async with client_for(await make_app(engine)) as client:
        yield client


async def test_a_response_has_text_and_usage(client):
    response = await client.responses.create(model="guide", input="Hi", metadata={"a": "b"})
    assert (response.output_text, response.status, response.error) == ("".join(ANSWER), "completed", None)
    assert (response.usage.output_tokens, response.metadata) == (len(ANSWER), {"a": "b"})
    assert response.usage.total_tokens == response.usage.input_tokens + len(ANSWER)


async def test_the_stream_helper_returns_the_response(client):
    async with client.responses.stream(model="guide", input="Hi") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        response = await stream.get_final_response()
    assert "".join(deltas) == response.output_text == "".join(ANSWER)


async def test_a_stream_has_openais_events_in_order(client):
    stream = await client.responses.create(model="guide", input="Hi", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
    assert events[-1].response.output_text == "".join(ANSWER)


async def test_a_limit_ends_a_response_incomplete(client):
    response = await client.responses.create(model="guide", input="Hi", max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    stream = await client.responses.create(model="guide", input="Hi", max_output_tokens=2, stream=True)
    assert [event.type async for event in stream][-1] == "response.incomplete"


async def test_log_probabilities_come_with_the_text(client):
    response = await client.responses.create(
        model="guide", input="Hi", include=["message.output_text.logprobs"], top_logprobs=2
    )
    entries = response.output[0].content[0].logprobs
    assert len(entries) == len(ANSWER) and all(len(entry.top_logprobs) == 2 for entry in entries)


async def test_the_prompt_can_be_counted(client):
    counted = await client.responses.input_tokens.count(model="guide", input="Hi", instructions="Be brief.")
    response = await client.responses.create(model="guide", input="Hi", instructions="Be brief.")
    assert counted.input_tokens == response.usage.input_tokens


class City(BaseModel):
    """What an answer is parsed into."""

    city: str


async def test_an_answer_is_parsed_into_a_model():
    app = with_grammars(await make_app(engine_that_says('{"city": "Oslo"}')))
    async with client_for(app) as client:
        response = await client.responses.parse(model="guide", input="Where?", text_format=City)
    assert response.output_parsed == City(city="Oslo")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_calls_come_back_as_the_tools_of_the_client(is_streamed):
    async with client_for(await make_app(engine_that_says(TEXT), reasoning_parser="think")) as client:
        asked: Any = {"model": "guide", "input": "How warm is it?", "tools": TOOLS}
        if is_streamed:
            async with client.responses.stream(**asked) as stream:
                response = await stream.get_final_response()
        else:
            response = await client.responses.create(**asked)
    reasoning, message, weather, opened, patch = response.output
    assert reasoning.content[0].text == "Two cities."
    assert message.content[0].text.strip() == "Let me see."
    assert (weather.type, weather.name, json.loads(weather.arguments)) == ("function_call", "weather", {"city": "Oslo"})
    assert (opened.name, opened.namespace, json.loads(opened.arguments)) == ("open", "files", {"city": "Rome"})
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "+a")
    assert len({item.call_id for item in (weather, opened, patch)}) == 3


async def test_an_answer_and_the_results_of_its_calls_go_back_to_the_model():
    engine = engine_that_says(TEXT)
    async with client_for(await make_app(engine, reasoning_parser="think")) as client:
        question: Any = {"role": "user", "content": "How warm is it?"}
        response = await client.responses.create(model="guide", input=[question], tools=TOOLS)
        said = [item.model_dump(exclude_none=True) for item in response.output]
        results = [
            {"type": f"{item.type}_output", "call_id": item.call_id, "output": "12"} for item in response.output[2:]
        ]
        await client.responses.create(model="guide", input=[question, *said, *results], tools=TOOLS)
    first, second = (request.prompt_token_ids for request in engine.requests)
    assert len(second) > len(first)


async def test_a_summary_of_reasoning_can_be_asked_for():
    app = await make_app(engine_that_says(TEXT), reasoning_parser="think")
    asked: Any = {"model": "guide", "input": "How warm?", "tools": TOOLS, "reasoning": {"summary": "auto"}}
    async with client_for(app) as client, client.responses.stream(**asked) as stream:
        response = await stream.get_final_response()
    assert [part.text for part in response.output[0].summary] == ["Two cities."]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_not_found", "previous_response_id"),
        ({"background": True, "store": False}, "invalid_value", "background"),
        ({"input": "word " * 3000}, "context_length_exceeded", "input"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    ],
)
async def test_errors_have_a_code_and_a_param(client, fields, code, param):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**{"model": "guide", "input": "Hi", "stream": stream, **fields})
        assert (caught.value.code, caught.value.param) == (code, param)


async def test_what_is_kept_nowhere_is_not_found(client):
    response = await client.responses.create(model="guide", input="Hi", store=False)
    assert response.store is False
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


async def test_a_kept_response_is_retrieved_listed_and_deleted(client):
    response = await client.responses.create(model="guide", input="Hi")
    assert response.store and await client.responses.retrieve(response.id) == response
    listed = await client.responses.input_items.list(response.id, order="asc", limit=5)
    [item] = listed.data
    assert (item.role, item.content[0].text, listed.has_more) == ("user", "Hi", False)
    assert [each.id async for each in client.responses.input_items.list(response.id)] == [item.id]
    assert await client.responses.delete(response.id) is None
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError) as caught:
            await call(response.id)
        assert caught.value.code == "not_found"


@pytest.mark.parametrize("background", [False, True])
async def test_a_stream_is_retrieved_from_an_event_on(client, background):
    stream = await client.responses.create(model="guide", input="Hi", stream=True, background=background)
    events = [event async for event in stream]
    again = await client.responses.retrieve(events[0].response.id, stream=True)
    assert [event async for event in again] == events
    rest = await client.responses.retrieve(events[0].response.id, stream=True, starting_after=4)
    assert [event async for event in rest] == events[5:]


async def test_a_response_in_the_background_is_waited_for(client):
    response = await client.responses.create(model="guide", input="Hi", background=True)
    while response.status in ("queued", "in_progress"):
        response = await client.responses.retrieve(response.id)
    assert (response.status, response.output_text) == ("completed", "".join(ANSWER))


async def test_a_response_in_the_background_is_cancelled():
    engine = FakeEngine(Script(answer=ANSWER), held=True)
    async with client_for(await make_app(engine)) as client:
        response = await client.responses.create(model="guide", input="Hi", background=True)
        assert (response.status, response.background) == ("queued", True)
        cancelled = await client.responses.cancel(response.id)
        assert (cancelled.id, cancelled.status) == (response.id, "cancelled")
        assert await client.responses.cancel(response.id) == cancelled


async def test_a_conversation_goes_on_from_a_response(client, engine):
    first = await client.responses.create(model="guide", input="Hi")
    second = await client.responses.create(model="guide", input="And?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    given: Any = [{"role": "user", "content": "Hi"}, *first.output, {"role": "user", "content": "And?"}]
    await client.responses.create(model="guide", input=given, store=False)
    *_, by_id, at_once = (request.prompt_token_ids for request in engine.requests)
    assert by_id == at_once
