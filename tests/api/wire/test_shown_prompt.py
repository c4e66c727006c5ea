"""Prompts in answers: `echo`, `prompt_logprobs` and answers of no tokens, streamed and whole."""

import asyncio
import json
import logging
from dataclasses import replace

import openai
import pytest

from app.api.body.parse_completion import parse_completion
from app.api.wire.api_request import ApiRequest
from app.api.wire.completion_format import CompletionFormat
from app.api.wire.shown_prompt import Echo, ShownPrompt, prompt_logprobs_pieces
from app.api.wire.stream_response import WRITE_BYTES
from app.config.settings import make_config
from app.contract.errors import UnsupportedParameter
from app.contract.packed_logprobs import Logprobs, TokenLogprobs, row_bytes
from app.observe.log import ACCESS_LOGGER, JsonFormatter
from app.text.entry.frontend import TextFrontend
from tests.api.body.test_rejections import check_error
from tests.api.serving import client_of, connected, load_text, make_app, parse, raw, serving, until
from tests.fake_port import MODEL_INFO, scores_of
from tests.fakes import FakeEngine, make_request, text_of, turn_loop

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
PROMPTS = [[300, 301, 302], [303, 304], [305]]
LONG = [*range(300, 1000)] * 2


async def answer_of(path, fields, engine=None):
    async with client_of(await make_app(engine or FakeEngine())) as client:
        answer = await client.post(path, json={"max_tokens": 3} | fields)
    assert answer.status_code == 200, answer.text
    return answer


async def chunks_of(path, fields, engine=None):
    answer = await answer_of(path, fields | {"stream": True}, engine)
    assert len(answer.text.splitlines()) == answer.text.count("\n"), "no line ends inside of the JSON"
    lines = answer.text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line not in ("", "data: [DONE]")]


def joined(chunks):
    """The text, the lists of log-probabilities and the finish reason of each choice of a completion's stream."""
    found = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text, lists, _ = found.get(choice["index"], ("", {}, None))
            for name, values in (choice["logprobs"] or {}).items():
                lists[name] = lists.get(name, []) + values
            found[choice["index"]] = (text + choice["text"], lists, choice["finish_reason"])
    return found


@pytest.fixture(scope="module")
def tokenizer():
    return load_text(make_config({})).tokenizer


def expected_scores(prompt, num_top, tokenizer):
    """vLLM's `prompt_logprobs` of a prompt of the fake engine."""
    entries = [None]
    for token in scores_of(prompt, num_top):
        best = zip(token.top_token_ids, token.top_logprobs, range(1, num_top + 1), strict=True)
        found = {}
        for token_id, logprob, rank in ((token.token_id, token.logprob, token.rank), *best):
            text = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
            found.setdefault(str(token_id), {"logprob": logprob, "rank": rank, "decoded_token": text})
        entries.append(found)
    return entries


@pytest.mark.parametrize("num_top", [0, 2])
async def test_prompt_logprobs_of_a_chat_are_in_the_answer_and_in_the_first_chunk(num_top, tokenizer):
    engine = FakeEngine()
    fields = {"messages": MESSAGES, "prompt_logprobs": num_top, "n": 2}
    whole = (await answer_of(CHAT, fields, engine)).json()
    expected = expected_scores(engine.requests[0].prompt_token_ids, num_top, tokenizer)
    assert len(expected) > 2 and whole["prompt_logprobs"] == expected
    assert all("prompt_logprobs" not in choice for choice in whole["choices"])
    first, *others = await chunks_of(CHAT, fields, engine)
    assert first["prompt_logprobs"] == expected and first["choices"][0]["delta"]["role"] == "assistant"
    assert not any("prompt_logprobs" in chunk for chunk in others)
    assert [chunk["choices"][0]["index"] for chunk in [first, others[0]]] == [0, 1]


async def test_prompt_logprobs_of_completions_are_those_of_the_prompt_of_the_choice(tokenizer):
    fields = {"prompt": PROMPTS, "prompt_logprobs": 1, "n": 2}
    expected = [expected_scores(prompt, 1, tokenizer) for prompt in PROMPTS]
    whole = (await answer_of(TEXT, fields)).json()
    assert [choice["prompt_logprobs"] for choice in whole["choices"]] == [expected[i // 2] for i in range(6)]
    chunks = await chunks_of(TEXT, fields)
    found = {
        choice["index"]: choice["prompt_logprobs"]
        for chunk in chunks
        for choice in chunk["choices"]
        if "prompt_logprobs" in choice
    }
    assert found == {2 * index: scores for index, scores in enumerate(expected)}
    begun = set()
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert ("prompt_logprobs" in choice) == (choice["index"] % 2 == 0 and choice["index"] not in begun)
        begun |= {choice["index"]}
    assert [text for text, _, _ in map(joined(chunks).get, range(6))] == [one["text"] for one in whole["choices"]]


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("extra", [{}, {"return_token_ids": True}, {"best_of": 3}], ids=["plain", "ids", "ranked"])
async def test_an_echo_is_in_front_of_each_choice_streamed_as_whole(max_tokens, logprobs, extra, tokenizer):
    fields = {"prompt": PROMPTS, "echo": True, "max_tokens": max_tokens, "n": 2, **extra}
    fields |= {} if logprobs is None else {"logprobs": logprobs}
    whole = (await answer_of(TEXT, fields)).json()
    for index, choice in enumerate(whole["choices"]):
        prompt = PROMPTS[index // 2]
        text = tokenizer.decode(prompt, skip_special_tokens=False)
        assert choice["text"] == text + text_of(prompt, max_tokens, index % 2)
        assert choice["finish_reason"] == "length" and "prompt_logprobs" not in choice
        if logprobs is None:
            assert choice["logprobs"] is None
            continue
        lists = choice["logprobs"]
        assert {len(values) for values in lists.values()} == {len(prompt) + max_tokens}
        assert lists["token_logprobs"][: len(prompt)] == [None, *(-1.0 - i for i in range(len(prompt) - 1))]
        assert lists["top_logprobs"][0] is None
        assert all(len(best) == logprobs + 1 for best in lists["top_logprobs"][1 : len(prompt)])
        assert "".join(lists["tokens"][: len(prompt)]) == text
        sizes = [len(token) for token in lists["tokens"][: len(prompt)]]
        assert lists["text_offset"][: len(prompt)] == [sum(sizes[:i]) for i in range(len(prompt))]
        assert lists["text_offset"][len(prompt) :][:1] == ([len(text)] if max_tokens else [])
    assert whole["usage"]["completion_tokens"] == 2 * max_tokens * 3 or "best_of" in extra
    assert whole["usage"]["prompt_tokens"] == 6
    streamed = joined(await chunks_of(TEXT, fields))
    assert streamed == {one["index"]: (one["text"], one["logprobs"] or {}, "length") for one in whole["choices"]}


async def test_the_echo_of_a_text_is_that_text_and_offsets_count_it(monkeypatch):
    monkeypatch.setattr(TextFrontend, "as_question", lambda *_, **__: None)  # `guide` would answer it
    fields = {"prompt": "ab 猫 up on", "echo": True, "logprobs": 1}
    choice = (await answer_of(TEXT, fields)).json()["choices"][0]
    lists = choice["logprobs"]
    assert choice["text"].startswith("ab 猫 up on")
    assert lists["tokens"][-5:-3] == [" up", " on"]
    assert lists["text_offset"][-5:-2] == [len("ab 猫"), len("ab 猫 up"), len("ab 猫 up on")]
    assert lists["text_offset"][0] == 0


@pytest.mark.parametrize("text", ["Hi é😀 x", "日本語 end", "naïve 😀 on"])
def test_offsets_count_characters_of_several_tokens_once(text, tokenizer):
    ids = tokenizer.encode(text, add_special_tokens=False)
    scores = Logprobs.of([TokenLogprobs(token_id, -1.0, 1, (), ()) for token_id in ids[1:]], 0)
    shown = ShownPrompt((Echo.of(text, ids, tokenizer.token_bytes),))
    request = ApiRequest(make_request(logprobs=0), "guide", 1, True, False, (), tokenizer.token_bytes, shown=shown)
    lists = json.loads(b"".join(CompletionFormat(request).logprobs_pieces(0, scores)))
    before = [b"".join(map(tokenizer.token_bytes, ids[:i])) for i in range(len(ids))]
    assert lists["text_offset"] == [len(part.decode("utf-8", "ignore")) for part in before]


async def test_an_answer_of_no_tokens_counts_none_in_every_chunk():
    fields = {"prompt": PROMPTS[0], "echo": True, "max_tokens": 0, "n": 2, "timings": True}
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    chunks = await chunks_of(TEXT, fields | options)
    assert {chunk["usage"]["completion_tokens"] for chunk in chunks} == {0}
    assert chunks[-1]["usage"]["prompt_tokens"] == 3 and chunks[-1]["timings"]["predicted_n"] == 0
    whole = (await answer_of(TEXT, fields)).json()
    assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"best_of": 3}, {"use_beam_search": True, "beam_width": 3}], ids=str)
async def test_the_engine_and_the_access_log_count_no_token_of_an_answer_without_any(caplog, fields, stream):
    caplog.set_level(logging.INFO, ACCESS_LOGGER)
    engine = FakeEngine()
    body = {"prompt": PROMPTS, "echo": True, "max_tokens": 0, "n": 2, "stream": stream, **fields}
    await answer_of(TEXT, body, engine)
    assert all(request.is_prompt_only and request.params.num_sequences == 2 for request in engine.requests)
    (line,) = [json.loads(JsonFormatter().format(one)) for one in caplog.records if one.name == ACCESS_LOGGER]
    assert (line["n"], line["prompt_tokens"], line["completion_tokens"]) == (6, 6, 0)


async def test_an_echo_with_scores_has_both_shapes():
    fields = {"prompt": PROMPTS[0], "echo": True, "logprobs": 1, "prompt_logprobs": 1}
    choice = (await answer_of(TEXT, fields)).json()["choices"][0]
    assert len(choice["prompt_logprobs"]) == 3 and len(choice["logprobs"]["tokens"]) == 6
    first, *_ = await chunks_of(TEXT, fields)
    assert first["choices"][0]["prompt_logprobs"] == choice["prompt_logprobs"]
    assert len(first["choices"][0]["logprobs"]["tokens"]) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_long_scores_are_written_in_pieces(stream):
    app, sizes = await make_app(FakeEngine()), []

    async def watched(scope, receive, send):
        async def note(message):
            sizes.append(len(message.get("body", b"")))
            await send(message)

        await app(scope, receive, note)

    async with client_of(watched) as client:
        body = {"prompt": LONG, "prompt_logprobs": 20, "max_tokens": 1, "stream": stream}
        whole = (await client.post(TEXT, json=body)).content
    assert whole.count(b'"decoded_token"') > 20 * (len(LONG) - 1)
    assert len(whole) > 10 * max(sizes) and max(sizes) < 8 * WRITE_BYTES


async def test_the_scores_of_an_unread_stream_are_pending_until_its_client_goes():
    engine = FakeEngine(held=True)
    app = await make_app(engine)
    streams = app.state.context.streams
    async with serving(app) as url:
        async with connected(url) as connection:
            body = {"prompt": LONG, "prompt_logprobs": 20, "max_tokens": 500, "stream": True}
            await connection.post(TEXT, body)
            await until(lambda: engine.requests)
            engine.step()
            await until(lambda: streams.pending_bytes >= (len(LONG) - 1) * row_bytes(20))
        await until(lambda: engine.aborted == [engine.requests[0].id])
        await until(lambda: streams.pending_bytes == 0)


async def test_a_drain_before_the_scores_is_an_error():
    engine = FakeEngine(held=True)
    async with client_of(await make_app(engine)) as client:
        task = asyncio.create_task(client.post(TEXT, json={"prompt": [5, 6], "prompt_logprobs": 1, "n": 2}))
        await until(lambda: engine.requests)
        engine.abort(engine.requests[0].id)
        await turn_loop(20)
        check_error(await task, 503, "draining")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (TEXT, {"prompt": [5], "prompt_logprobs": 0}, "prompt_logprobs"),
        (CHAT, {"messages": MESSAGES, "prompt_logprobs": 0}, "prompt_logprobs"),
        (TEXT, {"prompt": [5], "echo": True, "logprobs": 0}, "echo"),
    ],
)
async def test_a_device_that_cannot_score_refuses_by_name(path, fields, param):
    app = await make_app(FakeEngine())
    app.state.context.engine.model_info = lambda: replace(MODEL_INFO, hidden_size=0)
    async with client_of(app) as client:
        answer = await client.post(path, json=fields)
        check_error(answer, 400, "unsupported_parameter", param)
        assert "needs a CPU" in answer.json()["error"]["message"]
        assert (await client.post(TEXT, json={"prompt": [5], "echo": True, "max_tokens": 1})).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"prompt_logprobs": 0}, "prompt_logprobs"), ({"echo": True, "logprobs": 0}, "echo")],
)
async def test_a_prompt_of_more_than_4096_tokens_is_not_scored(fields, param):
    app = await make_app(FakeEngine())
    app.state.context.engine.model_info = lambda: replace(MODEL_INFO, max_model_len=8192)
    async with client_of(app) as client:
        answer = await client.post(TEXT, json={"prompt": [5] * 4097, **fields})
        check_error(answer, 400, "invalid_value", param)
        assert "at most 4096" in answer.json()["error"]["message"]
        answer = await client.post(TEXT, json={"prompt": [5] * 4096, "max_tokens": 1, **fields})
        assert answer.status_code == 200


async def test_the_engine_scores_a_prompt_only_where_it_is_asked_for():
    context = (await make_app(FakeEngine())).state.context
    for fields, expected in (
        ({"echo": True}, None),
        ({"logprobs": 2}, None),
        ({"echo": True, "logprobs": 2}, 2),
        ({"echo": True, "prompt_logprobs": 1}, 1),
    ):
        request = (await parse(raw({"prompt": "x"} | fields), context, parse_completion)).request
        assert request.params.prompt_logprobs == expected
    with pytest.raises(UnsupportedParameter, match="use HTTP"):
        await parse(raw({"prompt": "x", "prompt_logprobs": 0}), context, parse_completion, always_streams=True)


def test_no_token_has_a_lower_log_probability_than_json_can_say():
    scores = Logprobs.of([next(iter(scores_of((5, 6), 0)))._replace(logprob=float("-inf"))], 0)
    assert b"-9999.0" in b"".join(prompt_logprobs_pieces(scores, lambda token_id: b"x"))


@pytest.mark.parametrize("stream", [False, True])
async def test_the_openai_client_reads_the_echo_of_an_evaluation(stream, tokenizer):
    async with (
        serving(await make_app(FakeEngine())) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        answer = await client.completions.create(
            model="guide", prompt=PROMPTS, echo=True, logprobs=1, max_tokens=1, temperature=0, stream=stream
        )
        choices = {}
        for part in [chunk async for chunk in answer] if stream else [answer]:
            for choice in part.choices:
                choices.setdefault(choice.index, []).append(choice)
    for index, prompt in enumerate(PROMPTS):
        parts = choices[index]
        logprobs = [value for part in parts if part.logprobs for value in part.logprobs.token_logprobs]
        text = "".join(part.text for part in parts)
        assert text == tokenizer.decode(prompt, skip_special_tokens=False) + text_of(prompt, 1)
        assert logprobs == [None, *(-1.0 - i for i in range(len(prompt) - 1)), -0.5]
        assert parts[-1].finish_reason == "length"
