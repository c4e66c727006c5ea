"""The `openai` client library against a real server."""

import asyncio
import codecs
import json
from contextlib import asynccontextmanager

import openai
import pytest

from app.checkpoint.names import resolve
from app.checkpoint.text_files import FolderText
from app.config.settings import make_config
from app.contract.errors import Overloaded
from app.contract.events import Usage
from app.streaming.openai_shapes import token_name
from app.text.entry.frontend import TextFrontend
from tests.api.serving import FAST, make_app, serving, until
from tests.fake_port import LOGPROBS_VOCAB, tokens_of
from tests.fakes import FakeEngine, Script, text_of

MESSAGES = [{"role": "user", "content": "Hi"}]
ANSWER = ["He", "llo", " 猫", "\u2028", "data: x\n\n", "[DONE]"]


@pytest.fixture
def engine():
    return FakeEngine(Script(answer=ANSWER))


@pytest.fixture
async def client(engine):
    async with client_for(await make_app(engine)) as client:
        yield client


@asynccontextmanager
async def client_for(app, *, key="any", retries=0):
    async with (
        serving(app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=retries) as client,
    ):
        yield client


async def test_a_chat_stream_has_a_role_its_text_and_a_finish_reason(client):
    stream = await client.chat.completions.create(model="guide", messages=MESSAGES, stream=True)
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in chunks[1:-1]] == ANSWER
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


async def test_a_chat_stream_has_usage_if_requested(client):
    stream = await client.chat.completions.create(
        model="guide", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == len(ANSWER)
    assert last.usage.total_tokens == last.usage.prompt_tokens + len(ANSWER)
    assert last.usage.prompt_tokens_details.cached_tokens == 0


async def test_the_stream_helper_returns_the_completion(client):
    async with client.chat.completions.stream(model="guide", messages=MESSAGES) as stream:
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "".join(ANSWER)


async def test_a_chat_completion_has_text_finish_reason_and_usage(client):
    answer = await client.chat.completions.create(model="guide", messages=MESSAGES)
    assert answer.choices[0].message.content == "".join(ANSWER)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(ANSWER)
    assert answer._request_id is not None


async def test_chat_accepts_its_own_messages_and_content_parts(client, engine):
    answer = await client.chat.completions.create(model="guide", messages=MESSAGES)
    parts = {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "you?"}]}
    await client.chat.completions.create(
        model="guide", messages=[*MESSAGES, answer.choices[0].message.model_dump(), parts]
    )
    assert len(engine.requests[1].prompt_token_ids) > len(engine.requests[0].prompt_token_ids)


def logprob_tokens(engine):
    """The bytes of the tokens in the log-probabilities of the fake engine's last request."""
    tokenizer = TextFrontend.load(make_config({}).model, FolderText(resolve("guide"))).tokenizer
    ids = tokens_of(engine.requests[-1].prompt_token_ids, len(ANSWER))
    return [tokenizer.token_bytes(token_id % LOGPROBS_VOCAB) for token_id in ids]


async def test_chat_logprobs_are_those_of_the_engine(client, engine):
    answer = await client.chat.completions.create(model="guide", messages=MESSAGES, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert [bytes(entry.bytes) for entry in content] == logprob_tokens(engine)
    assert all(bytes(entry.bytes).decode("utf-8", "replace") == entry.token for entry in content)
    assert all([top.logprob for top in entry.top_logprobs] == [-0.5, -1.5] for entry in content)
    stream = await client.chat.completions.create(model="guide", messages=MESSAGES, logprobs=True, stream=True)
    streamed = [
        entry async for chunk in stream if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content
    ]
    assert [bytes(entry.bytes) for entry in streamed] == logprob_tokens(engine)
    assert all(entry.top_logprobs == [] for entry in streamed)


async def test_completions_are_the_same_streamed_and_complete(client, engine):
    stream = await client.completions.create(
        model="guide", prompt="Once", stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "".join(ANSWER)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.usage.completion_tokens == len(ANSWER)
    answer = await client.completions.create(model="guide", prompt=["Once"], logprobs=1)
    assert answer.choices[0].text == "".join(ANSWER)
    tokens = logprob_tokens(engine)
    assert answer.choices[0].logprobs.tokens == [token_name(token) for token in tokens]
    # The bytes of a character that is not complete yet are not counted.
    before = [codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(tokens[:n])) for n in range(len(tokens))]
    assert answer.choices[0].logprobs.text_offset == [len(text) for text in before]


async def test_several_chat_choices_are_the_same_streamed_and_complete(client, engine):
    engine.port.script = Script(answer=ANSWER, others=[["Hi"], ["Hel", "lo", "!"]], usage=Usage(0, 0, cached_tokens=3))
    answer = await client.chat.completions.create(model="guide", messages=MESSAGES, n=4)
    texts = ["".join(ANSWER), "Hi", "Hello!", "".join(ANSWER)]
    assert [(choice.index, choice.message.content) for choice in answer.choices] == list(enumerate(texts))
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.usage.completion_tokens == 2 * len(ANSWER) + 4
    assert answer.usage.total_tokens == len(engine.requests[0].prompt_token_ids) + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    stream = await client.chat.completions.create(
        model="guide", messages=MESSAGES, n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    assert last.usage.completion_tokens == len(ANSWER) + 1
    for index, text in enumerate(texts[:2]):
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert [choice.delta.role for choice in own] == ["assistant"] + [None] * (len(own) - 1)
        assert "".join(choice.delta.content or "" for choice in own) == text
        assert [choice.finish_reason for choice in own] == [None] * (len(own) - 1) + ["stop"]


async def test_the_stream_helper_returns_several_choices(client, engine):
    engine.port.script = Script(answer=ANSWER, others=[["Hi"]])
    async with client.chat.completions.stream(model="guide", messages=MESSAGES, n=2) as stream:
        completion = await stream.get_final_completion()
    assert [choice.message.content for choice in completion.choices] == ["".join(ANSWER), "Hi"]


@pytest.mark.parametrize("extra", [{"best_of": 6}, {"use_beam_search": True, "beam_width": 4}])
async def test_ranked_choices_are_the_same_streamed_and_complete(client, engine, extra):
    body = {"model": "guide", "prompt": [5, 6], "n": 2, "max_tokens": 3, "extra_body": extra}
    engine.port.script = Script()
    texts = [text_of([5, 6], 3, choice) for choice in range(2)]
    answer = await client.completions.create(**body)
    assert [choice.text for choice in answer.choices] == texts
    chunks = [chunk.choices[0] async for chunk in await client.completions.create(**body, stream=True)]
    assert [(chunk.index, chunk.text, chunk.finish_reason) for chunk in chunks] == [
        (0, texts[0], None), (0, "", "length"), (1, texts[1], None), (1, "", "length"),
    ]  # fmt: skip
    assert all(request.params.num_sequences == extra.get("best_of", 4) for request in engine.requests)


async def test_models_are_listed_and_retrieved(client):
    models = await client.models.list()
    assert [model.id for model in models.data] == ["guide"]
    assert (await client.models.retrieve("guide")).owned_by == "quire"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-9")


async def test_errors_are_raised_as_the_clients_exceptions(client):
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="guide", messages=[])
    assert bad.value.code == "invalid_value"
    with pytest.raises(openai.BadRequestError) as unsupported:
        await client.chat.completions.create(model="guide", messages=MESSAGES, functions=[{"name": "f"}])
    assert unsupported.value.code == "unsupported_parameter"


async def test_an_error_during_a_stream_is_raised(client, engine):
    engine.port.script = Script(answer=ANSWER, fail_after=2)
    stream = await client.chat.completions.create(model="guide", messages=MESSAGES, stream=True)
    seen = [(await anext(stream)).choices[0].delta.content for _ in range(3)]
    assert seen == ["", *ANSWER[:2]]
    with pytest.raises(openai.APIError, match="The step raised"):
        await anext(stream)


async def step_slowly(engine, count):
    """Do `count` steps of the engine for a request, with heartbeats before, between and after them."""
    await until(lambda: engine.requests)
    for _ in range(count):
        await asyncio.sleep(3 * FAST.generating_s)
        engine.step()
    await asyncio.sleep(3 * FAST.generating_s)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("route", ["chat", "chat helper", "completions"])
async def test_the_client_ignores_heartbeats_on_every_streaming_route(route, n):
    engine = FakeEngine(Script(answer=ANSWER), held=True)
    app = await make_app(engine, timers=FAST)
    async with client_for(app) as client:
        steps = asyncio.create_task(step_slowly(engine, len(ANSWER)))
        if route == "chat helper":
            async with client.chat.completions.stream(model="guide", messages=MESSAGES, n=n) as stream:
                answer = await stream.get_final_completion()
            texts = [choice.message.content for choice in answer.choices]
        else:
            options = {"model": "guide", "stream": True, "n": n, "max_tokens": 50}
            if route == "chat":
                stream = await client.chat.completions.create(messages=MESSAGES, **options)
            else:
                stream = await client.completions.create(prompt="Hi", **options)
            texts = [""] * n
            async for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += (choice.delta.content if route == "chat" else choice.text) or ""
        await steps
    assert texts == ["".join(ANSWER)] * n


async def test_a_key_is_checked():
    app = await make_app(api_key=("right",))
    async with client_for(app, key="right") as client:
        await client.models.list()
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.with_options(api_key="wrong").models.list()
        assert caught.value.code == "invalid_api_key"


async def test_a_request_to_an_overloaded_server_is_retried():
    engine = FakeEngine()
    calls = []

    def reject_once(request, sink, submit=engine.submit):
        calls.append(request.id)
        if len(calls) == 1:
            raise Overloaded("full")
        submit(request, sink)

    engine.submit = reject_once
    async with client_for(await make_app(engine), retries=1) as client:
        answer = await client.completions.create(model="guide", prompt=[5, 6], max_tokens=3)
    assert answer.choices[0].text == text_of([5, 6], 3)
    assert len(calls) == 2


async def test_the_raw_events_are_chunks_and_end_with_done(client):
    async with client.chat.completions.with_streaming_response.create(
        model="guide", messages=MESSAGES, stream=True
    ) as response:
        events = (await response.read()).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events[:-2])
