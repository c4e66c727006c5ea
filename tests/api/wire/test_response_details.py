"""What a request can ask for in its response besides the text: token ids and times, streamed or not."""

import json

import pytest
from msgspec.structs import asdict

from app.api.body.parse_chat import parse_chat
from app.contract.errors import UnsupportedParameter
from app.contract.events import Timings, Usage
from app.streaming.openai_shapes import TimingsAnswer
from tests.api.serving import client_of, make_app, parse, raw
from tests.fakes import FakeEngine, Script, tokens_of

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": [5, 6, 7]},
}
NAMES = {
    "queue_ms", "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n",
    "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
}  # fmt: skip


async def answer_of(engine, path, **fields):
    async with client_of(await make_app(engine)) as client:
        answer = await client.post(path, json=BODIES[path] | {"max_tokens": 4, "n": 2} | fields)
    assert answer.status_code == 200, answer.text
    assert "x-quire-ignored" not in answer.headers
    return answer


async def chunks_of(engine, path, **fields):
    """The chunks of a stream."""
    lines = (await answer_of(engine, path, stream=True, **fields)).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line not in ("", "data: [DONE]")]


def holder(path, body):
    """The object that has the ids of the prompt: the body of a chat, a choice of a completion."""
    return body if "chat" in path else body["choices"][0]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fields", [{}, {"logprobs": True}], ids=["plain", "logprobs"])
async def test_token_ids_are_those_of_prompt_and_output_streamed_or_not(path, fields):
    if fields and path == "/v1/completions":
        fields = {"logprobs": 1}
    engine = FakeEngine()
    whole = (await answer_of(engine, path, return_token_ids=True, **fields)).json()
    prompt = list(engine.requests[0].prompt_token_ids)
    expected = [list(tokens_of(prompt, 4, choice)) for choice in range(2)]
    assert holder(path, whole)["prompt_token_ids"] == prompt
    assert [choice["token_ids"] for choice in whole["choices"]] == expected

    chunks = await chunks_of(engine, path, return_token_ids=True, **fields)
    assert [holder(path, chunk).get("prompt_token_ids") for chunk in chunks].count(prompt) == 1
    assert holder(path, chunks[0])["prompt_token_ids"] == prompt
    streamed = [[], []]
    for chunk in chunks:
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice.get("token_ids", [])
    assert streamed == expected


@pytest.mark.parametrize("path", BODIES)
async def test_token_ids_are_streamed_with_tokens_that_complete_no_text(path):
    engine = FakeEngine(Script(answer=["", "", "a"]))
    chunks = await chunks_of(engine, path, return_token_ids=True, n=1, max_tokens=9)
    assert sum(len(choice.get("token_ids", [])) for chunk in chunks for choice in chunk["choices"]) == 3


@pytest.mark.parametrize("path", BODIES)
async def test_without_the_field_there_are_no_token_ids(path):
    assert "token_ids" not in (await answer_of(FakeEngine(), path)).text
    assert "token_ids" not in (await answer_of(FakeEngine(), path, stream=True)).text


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "usage", [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
async def test_timings_come_once_in_the_last_chunk_or_the_body(path, usage):
    whole = (await answer_of(FakeEngine(), path, timings=True)).json()
    chunks = await chunks_of(FakeEngine(), path, timings=True, stream_options=usage, return_token_ids=True)
    assert set(whole["timings"]) == set(chunks[-1]["timings"]) == NAMES
    assert all("timings" not in chunk for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == [] and ("usage" in chunks[-1]) == bool(usage)
    assert whole["timings"]["predicted_n"] == whole["usage"]["completion_tokens"]
    assert "timings" not in (await answer_of(FakeEngine(), path)).json()


def test_timings_are_milliseconds_and_tokens_per_second():
    timings = TimingsAnswer.of(Usage(12, 20, cached_tokens=4), Timings(0.5, 0.7, 2.7))
    assert (timings.queue_ms, timings.cache_n, timings.prompt_n, timings.prompt_ms) == (500, 4, 8, 200)
    assert (timings.prompt_per_token_ms, timings.prompt_per_second) == (25, 40)
    assert (timings.predicted_ms, timings.predicted_per_token_ms, timings.predicted_per_second) == (2000, 100, 10)


def test_timings_of_nothing_are_zero():
    timings = TimingsAnswer.of(Usage(4, 0, cached_tokens=4), Timings(0, 0, 0))
    assert {*asdict(timings).values()} == {0, 4}


async def test_token_ids_are_rejected_on_quire_v1():
    context = (await make_app()).state.context
    body = raw(BODIES["/v1/chat/completions"] | {"return_token_ids": True})
    with pytest.raises(UnsupportedParameter, match=r"on quire\.v1") as caught:
        await parse(body, context, parse_chat, always_streams=True)
    assert caught.value.param == "return_token_ids"
