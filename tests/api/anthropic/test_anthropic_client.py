"""The `anthropic` client library against a real server."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import groupby, pairwise

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from app.contract.errors import Overloaded
from app.contract.events import Usage
from tests.api.anthropic.messages import CITY, TOOLS, USER
from tests.api.anthropic.messages import streamed as events_of_stream
from tests.api.routes.test_tools import ANSWERS, pieces
from tests.api.serving import FAST, make_app, serving, until, with_grammars
from tests.fakes import FakeEngine, Script

CREATE = {"model": "guide", "max_tokens": 250, "messages": [USER]}
LONG = [{"role": "user", "content": "word " * 9000}]
TEXT = ["He", "llo", " 猫", "\u2028", "data: x\n\n", "event: ping"]


@pytest.fixture
def engine():
    return FakeEngine(Script(answer=TEXT))


@pytest.fixture
async def client(engine):
    async with client_for(await make_app(engine, reasoning_parser="think")) as client:
        yield client


@asynccontextmanager
async def client_for(app, *, key="any", retries=0):
    async with (
        serving(app) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=retries) as client,
    ):
        yield client


async def test_a_message_has_its_text_its_end_and_its_counts(client):
    message = await client.messages.create(**CREATE)
    assert [block.text for block in message.content] == ["".join(TEXT)]
    assert (message.type, message.role, message.model) == ("message", "assistant", "guide")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == len(TEXT)
    assert message._request_id is not None


async def test_a_stream_has_typed_events_and_ends_with_the_message(client, engine):
    engine.port.script.usage = Usage(0, 0, cached_tokens=3)
    async with client.messages.stream(**CREATE) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_message()
    kinds = [kind for kind, _ in groupby(event.type for event in events if event.type != "text")]
    assert kinds == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert "".join(event.text for event in events if event.type == "text") == "".join(TEXT)
    whole = await client.messages.create(**CREATE)
    assert [block.text for block in final.content] == [block.text for block in whole.content]
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert final.usage.input_tokens == whole.usage.input_tokens == len(engine.requests[0].prompt_token_ids) - 3
    assert final.usage.cache_read_input_tokens == 3


async def test_a_raw_stream_and_its_texts(client):
    raw = await client.messages.create(**CREATE, stream=True)
    assert [event.type async for event in raw][-1] == "message_stop"
    async with client.messages.stream(**CREATE) as stream:
        assert "".join([text async for text in stream.text_stream]) == "".join(TEXT)


@pytest.mark.parametrize("name", ANSWERS)
async def test_every_event_and_body_satisfies_the_clients_types(name):
    """Strictly, which the client does not check at run time."""
    app = await make_app(FakeEngine(Script(answer=pieces(ANSWERS[name], 5))), reasoning_parser="think")
    for event in await events_of_stream(app, tools=TOOLS):
        if event["type"] != "ping":
            TypeAdapter(RawMessageStreamEvent).validate_python(event)
    async with client_for(app) as client:
        answer = await client.messages.with_raw_response.create(**CREATE, tools=TOOLS)
        TypeAdapter(Message).validate_json(await answer.read())


@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "a broken call"])
async def test_a_streamed_message_is_the_whole_one(client, engine, name):
    engine.port.script = Script(answer=pieces(ANSWERS[name], 3))
    whole = await client.messages.create(**CREATE, tools=TOOLS)
    async with client.messages.stream(**CREATE, tools=TOOLS) as stream:
        final = await stream.get_final_message()

    def comparable(message):
        return [block.model_dump(exclude={"id", "parsed_output"}) for block in message.content], message.stop_reason

    assert comparable(final) == comparable(whole)


async def test_a_loop_of_tools_sends_what_it_got(client, engine):
    engine.port.script = Script(answer=pieces(ANSWERS["reasoning and a call"], 4))
    messages = [USER]
    async with client.messages.stream(**CREATE | {"messages": messages}, tools=TOOLS) as stream:
        first = await stream.get_final_message()
    [thinking, call] = first.content
    assert (thinking.type, first.stop_reason) == ("thinking", "tool_use")
    assert (call.name, call.input) == ("weather", {"city": "Ab<b>é"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "3 degrees"}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    engine.port.script = Script(answer=["Cold."])
    second = await client.messages.create(**CREATE | {"messages": messages}, tools=TOOLS)
    assert [block.text for block in second.content] == ["Cold."]
    before, after = [request.prompt_token_ids for request in engine.requests]
    assert after[: len(before)] == before, "the prefix is in the cache"


async def test_the_clients_own_tool_runner_calls_the_function(client, engine):
    asked = []

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Its name.
        """
        asked.append(city)
        engine.port.script = Script(answer=["It is cold there."])
        return "3 degrees"

    engine.port.script = Script(answer=pieces(ANSWERS["call"], 4))
    runner = client.beta.messages.tool_runner(**CREATE, tools=[weather])
    final = await runner.until_done()
    assert asked == ["Ab<b>é"]
    assert final.content[0].text == "It is cold there."


async def test_tokens_are_counted(client, engine):
    counted = await client.messages.count_tokens(model="guide", messages=[USER], system="Be brief.", tools=TOOLS)
    await client.messages.create(**CREATE, system="Be brief.", tools=TOOLS)
    assert counted.input_tokens == len(engine.requests[0].prompt_token_ids)


async def test_models_are_listed_and_retrieved(client):
    page = await client.models.list()
    [model] = page.data
    assert (model.id, model.type, model.display_name, model.lifecycle) == ("guide", "model", "guide", "active")
    assert model.created_at == datetime.fromtimestamp(0, UTC)
    assert model.max_input_tokens == 2047
    assert (page.has_more, page.first_id, page.last_id) == (False, "guide", "guide")
    assert [model.id async for model in client.models.list()] == ["guide"]
    assert (await client.models.retrieve("guide")).id == "guide"
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("claude-opus")


async def test_errors_are_raised_as_the_clients_exceptions(client):
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(**CREATE | {"model": "claude-opus"})
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="top_k is -2"):
        await client.messages.create(**CREATE, extra_body={"top_k": -2})
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 2047 maximum"):
        await client.messages.create(**CREATE | {"messages": LONG})
    assert (await client.messages.count_tokens(model="guide", messages=LONG)).input_tokens >= 9000
    assert missing.value.request_id == missing.value.body["request_id"]


async def test_a_key_is_checked():
    async with client_for(await make_app(FakeEngine(), api_key=("secret",)), key="secret") as client:
        await client.messages.create(**CREATE)
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="other").messages.create(**CREATE)


async def test_an_error_during_a_stream_is_raised(client, engine):
    engine.port.script = Script(answer=TEXT, fail_after=2)
    stream = await client.messages.create(**CREATE, stream=True)
    with pytest.raises(anthropic.APIStatusError, match="The step raised"):
        async for _ in stream:
            pass


async def test_the_client_retries_after_an_overload(monkeypatch):
    engine = FakeEngine(Script(answer=TEXT))
    submit, attempts = engine.submit_all, []

    def refused(submissions):
        attempts.append(1)
        if len(attempts) == 1:
            raise Overloaded("Full.", retry_after_s=0)
        submit(submissions)

    monkeypatch.setattr(engine, "submit_all", refused)
    async with client_for(await make_app(engine), retries=1) as client:
        assert (await client.messages.create(**CREATE)).content[0].text == "".join(TEXT)
    assert len(attempts) == 2


async def test_heartbeats_disturb_no_stream():
    engine = FakeEngine(Script(answer=TEXT), held=True)
    app = await make_app(engine, timers=FAST)
    async with client_for(app) as client, client.messages.stream(**CREATE) as stream:
        await until(lambda: engine.requests)
        engine.step(2)
        seen = [await anext(stream) for _ in range(3)]
        engine.release()
        final = await stream.get_final_message()
    assert seen[0].type == "message_start"
    assert final.content[0].text == "".join(TEXT)


async def test_a_structured_output_is_a_grammar(engine):
    config = {"format": {"type": "json_schema", "schema": CITY}, "effort": "low"}
    async with client_for(with_grammars(await make_app(engine))) as client:
        await client.messages.create(**CREATE, output_config=config)
    assert "city" in engine.requests[0].grammar.source


async def test_a_session_of_several_turns_keeps_its_prefix(client, engine):
    messages, prompts = [], []
    for question in ("One?", "Two?", "Three?"):
        messages.append({"role": "user", "content": question})
        async with client.messages.stream(**CREATE | {"messages": messages}) as stream:
            answer = await stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        prompts.append(engine.requests[-1].prompt_token_ids)
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(prompts))
