"""What a body's request becomes: its defaults, and long bodies, parsed on threads of their own."""

import asyncio
import threading
from dataclasses import replace

import pytest

from app.api.body.parse_chat import parse_chat
from app.api.body.parse_request import MAX_SMALL_BYTES
from app.api.http.context import MAX_LONG_WAITING, NUM_LONG_THREADS
from app.contract.errors import ContextLengthExceeded, Overloaded
from app.contract.sampling_defaults import SamplingDefaults
from app.text.template.chat_template import ChatTemplate
from tests.api.serving import HANG_S, client_of, make_app, parse, raw, until
from tests.fakes import MODEL_INFO, FakeEngine

BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, 90),
        ({"min_tokens": 95}, 95),
        ({"max_tokens": 99}, 99),
        ({"max_completion_tokens": 99}, 99),
        ({"max_tokens": -1}, None),
        ({"max_completion_tokens": -1}, None),
    ],
)
async def test_the_models_default_max_tokens_is_that_of_chats_that_name_none(fields, max_tokens):
    engine = FakeEngine()
    info = replace(MODEL_INFO, defaults=SamplingDefaults(max_tokens=90))
    engine.model_info = lambda: info  # type: ignore[method-assign]
    request = (await parse(raw(BODY | fields), (await make_app(engine)).state.context, parse_chat)).request
    assert request.params.max_tokens == (max_tokens or MODEL_INFO.max_model_len - len(request.prompt_token_ids))


@pytest.fixture
async def context():
    return (await make_app(FakeEngine())).state.context


async def test_long_bodies_are_parsed_two_at_once_on_their_threads_and_short_ones_do_not_wait(context, monkeypatch):
    gate, threads = threading.Event(), []
    encode_parts = type(context.text.tokenizer).encode_parts

    def slow(self, parts, **options):
        parts = list(parts)
        if sum(len(part.text) for part in parts) > 50_000:
            threads.append(threading.get_ident())
            gate.wait(HANG_S)
        return encode_parts(self, parts, **options)

    monkeypatch.setattr(type(context.text.tokenizer), "encode_parts", slow)
    monkeypatch.setitem(vars(context.text.tokenizer), "max_token_chars", 10**9)
    long = raw({"messages": [{"role": "user", "content": " " * MAX_SMALL_BYTES}], "max_tokens": 1})
    waiting = [asyncio.create_task(parse(long, context, parse_chat)) for _ in range(4)]
    await until(lambda: len(threads) == NUM_LONG_THREADS)
    for _ in range(3):
        assert (await parse(raw(BODY), context, parse_chat)).request.prompt_token_ids
    assert len(threads) == NUM_LONG_THREADS == 2
    gate.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(threads) == 4 and len(set(threads)) == NUM_LONG_THREADS


async def test_the_number_of_waiting_long_bodies_is_bounded(context, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(ChatTemplate, "render", lambda self, messages, options, **limits: gate.wait(HANG_S) and [5])
    long = raw({"messages": [{"role": "user", "content": "x" * MAX_SMALL_BYTES}], "x": "y" * MAX_SMALL_BYTES})
    monkeypatch.setitem(vars(context.text.tokenizer), "max_token_chars", 10**9)
    waiting = [
        asyncio.create_task(parse(long, context, parse_chat)) for _ in range(NUM_LONG_THREADS + MAX_LONG_WAITING)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await parse(long, context, parse_chat)
    gate.set()
    await asyncio.gather(*waiting)


async def test_the_heap_is_trimmed_after_long_bodies_alone(context, monkeypatch):
    trims = []
    monkeypatch.setattr(context.heap, "_trim", lambda: trims.append(1))
    monkeypatch.setattr(context.heap, "_delay_s", 0.0)
    await parse(raw(BODY), context, parse_chat)
    assert context.heap._timer is None
    long = raw({"messages": [{"role": "user", "content": "x" * MAX_SMALL_BYTES}]})
    for count in (1, 2):  # rejected too
        with pytest.raises(ContextLengthExceeded):
            await parse(long, context, parse_chat)
        await until(lambda: len(trims) == count)  # noqa: B023


async def test_the_tenant_of_a_request_is_its_key():
    engine = FakeEngine()
    async with client_of(await make_app(engine, api_key=("one", "two"))) as client:
        for path, body in (("completions", {"prompt": [5]}), ("chat/completions", BODY)):
            for headers in ({"x-api-key": "two"}, {"authorization": "Bearer one"}):
                answer = await client.post(f"/v1/{path}", json=body | {"max_tokens": 1}, headers=headers)
                assert answer.status_code == 200
    assert [request.tenant for request in engine.requests] == ["key-2", "key-1"] * 2
