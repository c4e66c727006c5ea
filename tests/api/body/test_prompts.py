"""Several prompts in one completion: one answer with the choices of all, admitted and ended together."""

import asyncio
import json

import pytest

from app.api.body.parse_completion import parse_completion
from app.api.body.prompts import MAX_PROMPT_SEQUENCES
from app.config.settings import make_config
from app.contract.errors import InvalidValue
from app.contract.requests import Abort, Submit
from tests.api.body.test_rejections import check_error
from tests.api.serving import client_of, connected, make_app, parse, raw, serving, until
from tests.fakes import FakeEngine, text_of, tokens_of, turn_loop

PATH = "/v1/completions"
PROMPTS = [[5, 6, 7], [8, 9], [5, 6, 7]]


async def requests_of(**body):
    context = (await make_app()).state.context
    return await parse(raw(body), context, parse_completion)


async def answer_of(engine, **fields):
    async with client_of(await make_app(engine)) as client:
        answer = await client.post(PATH, json={"prompt": PROMPTS, "max_tokens": 4, "n": 2} | fields)
    assert answer.status_code == 200, answer.text
    return answer


def chunks_of(answer):
    lines = answer.text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line not in ("", "data: [DONE]")]


async def test_each_prompt_is_a_request_with_a_numbered_id_and_a_seed_of_its_own():
    parsed = await requests_of(prompt=["a", "b", "a"], seed=2**64 - 2)
    assert [request.id for request in parsed.requests] == [f"{parsed.id}-{index}" for index in range(3)]
    assert [request.params.seed for request in parsed.requests] == [2**64 - 2, 2**64 - 1, 0]
    assert parsed.requests[0].prompt_token_ids == parsed.requests[2].prompt_token_ids
    single = await requests_of(prompt=["a"], seed=7)
    assert (single.others, single.id, single.request.params.seed) == ((), single.request.id, 7)


async def test_without_a_seed_the_prompts_have_random_ones():
    parsed = await requests_of(prompt=["a"] * 3)
    assert len({request.params.seed for request in parsed.requests}) == 3


async def test_the_largest_number_of_prompts_is_accepted():
    assert len((await requests_of(prompt=["a"] * MAX_PROMPT_SEQUENCES)).requests) == MAX_PROMPT_SEQUENCES
    assert len((await requests_of(prompt=[[5]] * (MAX_PROMPT_SEQUENCES // 2), n=2)).requests) == 64


@pytest.mark.parametrize("token_id", [10**30, -(10**30)])
async def test_an_id_of_more_than_64_bits_is_out_of_range(token_id):
    for prompt in ([5, token_id], [[5, token_id]]):
        with pytest.raises(InvalidValue, match=r"contains the token id -?1e\+30, which is out of range") as caught:
            await requests_of(prompt=prompt)
        assert caught.value.param == "prompt"


async def test_choices_are_numbered_by_prompt_and_the_usage_is_the_sum():
    body = (await answer_of(FakeEngine())).json()
    texts = [text_of(prompt, 4, choice) for prompt in PROMPTS for choice in range(2)]
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == list(enumerate(texts))
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (8, 24)


@pytest.mark.parametrize(
    "fields", [{}, {"logprobs": 1}, {"return_token_ids": True}, {"stream_options": {"include_usage": True}}], ids=str
)
async def test_a_stream_has_the_same_choices_as_the_whole_answer(fields):
    whole = (await answer_of(FakeEngine(), **{k: v for k, v in fields.items() if k != "stream_options"})).json()
    engine = FakeEngine()
    answer = await answer_of(engine, stream=True, **fields)
    assert answer.text.endswith("data: [DONE]\n\n")
    chunks = chunks_of(answer)
    assert {chunk["id"] for chunk in chunks} == {engine.requests[0].id.removesuffix("-0")}
    texts, token_ids, reasons = [""] * 6, [[] for _ in range(6)], {}
    offsets = [[] for _ in range(6)]
    for chunk in chunks:
        for choice in chunk["choices"]:
            index = choice["index"]
            texts[index] += choice["text"]
            token_ids[index] += choice.get("token_ids", [])
            offsets[index] += (choice["logprobs"] or {}).get("text_offset", [])
            if choice["finish_reason"]:
                reasons[index] = choice["finish_reason"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert reasons == {choice["index"]: choice["finish_reason"] for choice in whole["choices"]}
    if "logprobs" in fields:
        assert offsets == [choice["logprobs"]["text_offset"] for choice in whole["choices"]]
    if "return_token_ids" in fields:
        assert token_ids == [list(tokens_of(prompt, 4, choice)) for prompt in PROMPTS for choice in range(2)]
        assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [p for p in PROMPTS for _ in range(2)]
        firsts = [c["choices"][0] for c in chunks if c["choices"] and "prompt_token_ids" in c["choices"][0]]
        assert [(choice["index"], choice["prompt_token_ids"]) for choice in firsts] == [
            (2 * index, prompt) for index, prompt in enumerate(PROMPTS)
        ]
    if "stream_options" in fields:
        assert chunks[-1]["usage"] == whole["usage"]


async def test_continuous_usage_counts_the_prompt_of_the_choice():
    options = {"include_usage": True, "continuous_usage_stats": True}
    for chunk in chunks_of(await answer_of(FakeEngine(), stream=True, stream_options=options)):
        for choice in chunk["choices"]:
            assert chunk["usage"]["prompt_tokens"] == len(PROMPTS[choice["index"] // 2])


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_are_rejected_together(stream):
    config = make_config({"max_queue": 2, "max_num_seqs": 1})
    engine = FakeEngine(config=config, held=True)
    async with client_of(await make_app(engine, config)) as client:
        first = asyncio.create_task(client.post(PATH, json={"prompt": [5], "max_tokens": 1}))
        await until(lambda: engine.requests)
        answer = await client.post(PATH, json={"prompt": PROMPTS, "max_tokens": 4, "stream": stream})
        check_error(answer, 503, "overloaded")
        assert len([one for one in engine.port.posted if isinstance(one, Submit)]) == 1
        engine.release()
        assert (await first).status_code == 200
        two = await client.post(PATH, json={"prompt": PROMPTS[:2], "max_tokens": 4, "stream": stream})
        assert two.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_if_one_prompt_fails_the_answer_fails_and_the_others_are_aborted(stream):
    engine = FakeEngine(held=True)
    async with client_of(await make_app(engine)) as client:
        task = asyncio.create_task(client.post(PATH, json={"prompt": PROMPTS, "max_tokens": 9, "stream": stream}))
        await until(lambda: engine.requests)
        engine.step(2)
        await turn_loop(20)
        failing = engine.requests[1].id
        engine.port.fail(failing)
        await turn_loop(20)
        answer = await task
        if stream:
            assert "[DONE]" not in answer.text
            assert chunks_of(answer)[-1]["error"]["code"] == "engine_error"
        else:
            check_error(answer, 500, "engine_error")
        aborted = [command.request_id for command in engine.port.posted if isinstance(command, Abort)]
        assert sorted({*aborted, failing}) == sorted(request.id for request in engine.requests)


async def test_a_disconnect_aborts_all_prompts():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url:
        async with connected(url) as connection:
            await connection.post(PATH, {"prompt": PROMPTS, "max_tokens": 100, "stream": True})
            await until(lambda: len(engine.requests) == 3)
            engine.step()
            await connection.head()
            assert await connection.chunk()
        await until(lambda: len(set(engine.aborted)) == 3)
