"""`.parse()` of the `openai` client library, asynchronous and not, and the retries of the latter, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from app.contract.errors import Overloaded
from tests.api.serving import make_app, serving, with_grammars
from tests.api.test_openai_client import client_for
from tests.fakes import FakeEngine, Script

MESSAGES: Any = [{"role": "user", "content": "How warm is it in Oslo?"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int
    wind: str | None = None


class GetWeather(BaseModel):
    """Arguments of a tool."""

    city: str


ANSWER = '{"city": "Oslo", "degrees": 3, "wind": null}'
CALL = '<tool_call>\n{"name": "GetWeather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOLS: Any = [openai.pydantic_function_tool(GetWeather)]


def answering(text: str) -> FakeEngine:
    return FakeEngine(Script(answer=[text[start : start + 4] for start in range(0, len(text), 4)]))


async def app_of(engine: FakeEngine) -> Any:
    """The application with the vocabulary of `guide`, so that grammars are compiled."""
    return with_grammars(await make_app(engine, reasoning_parser="none"))


Ask = Callable[..., Any]


@pytest.fixture(params=["async", "sync"])
async def parse(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[FakeEngine], Any]]:
    """Calls `.parse()` of one of the clients with an engine's answer."""

    async def call(engine: FakeEngine, **fields: Any) -> Any:
        options = {"model": "guide", "messages": MESSAGES, **fields}
        app = await app_of(engine)
        if request.param == "async":
            async with client_for(app) as client:
                return await client.chat.completions.parse(**options)

        def run(url: str) -> Any:
            with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
                return client.chat.completions.parse(**options)

        async with serving(app) as url:
            return await asyncio.to_thread(run, url)

    yield call


async def test_an_answer_becomes_the_model_that_was_asked_for(parse):
    engine = answering(ANSWER)
    answer = await parse(engine, response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(city="Oslo", degrees=3)
    assert engine.requests[0].grammar is not None


async def test_arguments_of_calls_become_models(parse):
    engine = answering(CALL)
    answer = await parse(engine, tools=TOOLS)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city="Oslo")
    assert answer.choices[0].finish_reason == "tool_calls"
    assert engine.requests[0].grammar is not None, "pydantic's tools are strict"


@pytest.mark.parametrize("text", [ANSWER, CALL])
async def test_an_answer_may_be_either(parse, text):
    answer = await parse(answering(text), tools=TOOLS, response_format=Weather)
    message = answer.choices[0].message
    if text == CALL:
        assert message.parsed is None
        assert message.tool_calls[0].function.parsed_arguments == GetWeather(city="Oslo")
    else:
        assert not message.tool_calls
        assert message.parsed == Weather(city="Oslo", degrees=3)


async def test_an_answer_that_is_too_long_is_the_clients_error(parse):
    engine = FakeEngine(Script())
    with pytest.raises(openai.LengthFinishReasonError):
        await parse(engine, response_format=Weather, max_tokens=2)


async def test_the_stream_helper_parses_too():
    async with (
        client_for(await app_of(answering(ANSWER))) as client,
        client.chat.completions.stream(model="guide", messages=MESSAGES, response_format=Weather) as stream,
    ):
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.parsed == Weather(city="Oslo", degrees=3)


@pytest.mark.parametrize("streams", [False, True])
async def test_the_client_that_is_not_asynchronous_tries_again(streams):
    engine = answering(ANSWER)
    calls: list[str] = []

    def reject_twice(request, sink, submit=engine.submit):
        calls.append(request.id)
        if len(calls) <= 2:
            raise Overloaded("full")
        submit(request, sink)

    engine.submit = reject_twice

    def run(url: str) -> str:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=2) as client:
            answer: Any = client.chat.completions.create(model="guide", messages=MESSAGES, stream=streams)
            if not streams:
                return answer.choices[0].message.content
            return "".join(chunk.choices[0].delta.content or "" for chunk in answer)

    async with serving(await app_of(engine)) as url:
        assert await asyncio.to_thread(run, url) == ANSWER
    assert len(calls) == 3


async def test_a_request_that_is_wrong_is_not_tried_again():
    engine = answering(ANSWER)
    seen: list[int] = []

    def run(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=2) as client:
            raw = client.chat.completions.with_raw_response
            try:
                raw.create(model="guide", messages=MESSAGES, temperature=-1)
            except openai.BadRequestError as error:
                seen.append(error.response.request.headers["x-stainless-retry-count"] == "0")

    async with serving(await app_of(engine)) as url:
        await asyncio.to_thread(run, url)
    assert seen == [True]
