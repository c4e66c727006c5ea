"""The routes of responses: a JSON body, a stream, the count of a prompt, and what is refused."""

import json

import jsonschema
import pytest
from openai.types.responses import Response

from tests.api.serving import client_of, connected, make_app, serving, until
from tests.fakes import FakeEngine, Script

PATH = "/v1/responses"
ANSWER = ["He", "llo", " 猫"]


@pytest.fixture
def engine():
    return FakeEngine(Script(answer=ANSWER))


async def test_a_response_is_one_json_body(engine):
    async with client_of(await make_app(engine)) as client:
        answer = await client.post(PATH, json={"input": "Hi", "metadata": {"a": "b"}})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    response = Response.model_validate(answer.json(), strict=True)
    assert (response.output_text, response.status, response.metadata) == ("".join(ANSWER), "completed", {"a": "b"})
    assert response.usage.output_tokens == len(ANSWER)


async def test_a_stream_ends_with_the_same_response(engine):
    async with client_of(await make_app(engine)) as client:
        answer = await client.post(PATH, json={"input": "Hi", "stream": True})
        whole = (await client.post(PATH, json={"input": "Hi"})).json()
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(event.split("data: ", 1)[1]) for event in answer.text.split("\n\n") if event]
    assert [events[0]["type"], events[-1]["type"]] == ["response.created", "response.completed"]
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    texts = [item["content"][0]["text"] for item in (*events[-1]["response"]["output"], *whole["output"])]
    assert texts == ["".join(ANSWER)] * 2


async def test_the_tokens_of_a_prompt_are_counted(engine):
    body = {"input": [{"role": "user", "content": "Hi"}], "tools": [{"type": "web_search"}]}
    async with client_of(await make_app(engine)) as client:
        answer = await client.post(f"{PATH}/input_tokens", json=body)
        usage = (await client.post(PATH, json=body)).json()["usage"]
    assert answer.json() == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    assert answer.headers["x-quire-ignored"] == "tools%5B0%5D"


@pytest.mark.parametrize("path", [PATH, f"{PATH}/input_tokens"])
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "invalid_value", "input"),
        ({"input": "Hi", "model": "gpt-9"}, "model_not_found", "model"),
        ({"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_not_found", "previous_response_id"),
        ({"input": "Hi", "background": True, "store": False}, "invalid_value", "background"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "not_found", "input[0].id"),
    ],
)
async def test_a_rejected_body_is_an_error_in_openais_shape(engine, path, body, code, param):
    async with client_of(await make_app(engine)) as client:
        answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert answer.status_code == (404 if code in ("model_not_found", "not_found") else 400)
    assert engine.requests == []


async def test_a_prompt_that_is_too_long_is_rejected_and_counted(engine):
    """Clients ask for the count to know how much too long it is."""
    body = {"input": "word " * 60_000}
    async with client_of(await make_app(engine)) as client:
        refused = await client.post(PATH, json=body)
        counted = await client.post(f"{PATH}/input_tokens", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert counted.status_code == 200 and counted.json()["input_tokens"] >= 60_000
    assert engine.requests == []


async def test_every_field_of_a_response_is_described():
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    engine = FakeEngine(Script(answer=[f"<think>Hm.</think>\n\nLet me see.\n{call}"]))
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
    body = {"input": "Hi", "tools": tools, "timings": True, "include": ["message.output_text.logprobs"]}
    async with client_of(await make_app(engine, reasoning_parser="think")) as client:
        answer = await client.post(PATH, json=body)
        found = (await client.get("/openapi.json")).json()
    assert [item["type"] for item in answer.json()["output"]] == ["reasoning", "message", "function_call"]
    for schema in found["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    described = found["paths"][PATH]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**described, "components": found["components"]})


async def test_other_methods_are_refused(engine):
    async with client_of(await make_app(engine)) as client:
        answer = await client.get(PATH)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_an_answer_is_never_kept(engine):
    headers = {"x-quire-resume": "1", "idempotency-key": "k" * 16}
    async with client_of(await make_app(engine), **headers) as client:
        for _ in range(2):
            answer = await client.post(PATH, json={"input": "Hi", "stream": True})
            assert answer.status_code == 200 and "x-quire-stream-id" not in answer.headers
    assert len(engine.requests) == 2


async def test_a_client_that_goes_away_ends_its_answer():
    engine = FakeEngine(Script(answer=ANSWER), held=True)
    async with serving(await make_app(engine)) as url:
        async with connected(url) as connection:
            await connection.post(PATH, {"input": "Hi", "stream": True})
            await until(lambda: engine.requests)
        await until(lambda: engine.aborted)
