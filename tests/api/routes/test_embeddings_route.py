"""`POST /v1/embeddings`: inputs, shapes, bounds, and requests that are admitted and ended together."""

import asyncio
import base64
import struct

import pytest

from app.api.body.parse_embeddings import MAX_INPUTS
from app.config.settings import make_config
from app.contract.requests import Pooling, PoolingKind, Submit
from tests.api.body.test_rejections import check_error
from tests.api.serving import client_of, connected, make_app, serving, until
from tests.fake_port import MODEL_INFO, vector_of
from tests.fakes import FakeEngine, turn_loop

PATH = "/v1/embeddings"


def floats(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


async def answer_of(engine=None, **body):
    async with client_of(await make_app(engine or FakeEngine())) as client:
        answer = await client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("given", ["Hi", ["Hi"], [5, 6], [[5, 6]], ["Hi", "there"], [[5], [6, 7], [5]]], ids=str)
async def test_every_input_has_a_vector_in_its_order(given):
    engine = FakeEngine()
    answer = await answer_of(engine, input=given, model="guide")
    prompts = [request.prompt_token_ids for request in engine.requests]
    assert answer["data"] == [
        {"object": "embedding", "index": index, "embedding": floats(vector_of(prompt, Pooling()))}
        for index, prompt in enumerate(prompts)
    ]
    num_tokens = sum(map(len, prompts))
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert (answer["object"], answer["model"]) == ("list", "guide")


async def test_base64_is_little_endian_float32():
    answer = await answer_of(input=[5, 6], encoding_format="base64")
    assert base64.b64decode(answer["data"][0]["embedding"]) == vector_of((5, 6), Pooling())


@pytest.mark.parametrize(
    ("fields", "pooling"),
    [
        ({}, Pooling(PoolingKind.MEAN, None, True)),
        ({"pooling": "last", "normalize": False}, Pooling(PoolingKind.LAST, None, False)),
        ({"dimensions": 3}, Pooling(PoolingKind.MEAN, 3, True)),
        ({"dimensions": MODEL_INFO.hidden_size, "user": "me"}, Pooling(PoolingKind.MEAN, 8, True)),
    ],
)
async def test_options_reach_the_engine(fields, pooling):
    engine = FakeEngine()
    await answer_of(engine, input="Hi", **fields)
    (request,) = engine.requests
    assert (request.pooling, request.params.max_tokens) == (pooling, 1)


BAD = [
    ("no input", {}, "invalid_value", "input"),
    ("empty input", {"input": ""}, "invalid_value", "input"),
    ("an empty item", {"input": ["a", ""]}, "invalid_value", "input[1]"),
    ("an empty list", {"input": []}, "invalid_value", "input"),
    ("a number", {"input": 5}, "invalid_value", "input"),
    ("too many", {"input": ["a"] * (MAX_INPUTS + 1)}, "invalid_value", "input"),
    ("a negative id", {"input": [[5], [-1]]}, "invalid_value", "input[1]"),
    ("a long text", {"input": ["a", "x" * 2**20]}, "context_length_exceeded", "input[1]"),
    ("a full context", {"input": [5] * MODEL_INFO.max_model_len}, "context_length_exceeded", "input"),
    ("no dimensions", {"input": "a", "dimensions": 0}, "invalid_value", "dimensions"),
    ("more dimensions", {"input": "a", "dimensions": 9}, "invalid_value", "dimensions"),
    ("an unknown encoding", {"input": "a", "encoding_format": "int8"}, "invalid_value", "encoding_format"),
    ("an unknown pooling", {"input": "a", "pooling": "max"}, "invalid_value", "pooling"),
    ("normalize 1", {"input": "a", "normalize": 1}, "invalid_value", "normalize"),
    ("input_type", {"input": "a", "input_type": "query"}, "unsupported_parameter", "input_type"),
]


@pytest.mark.parametrize(("body", "code", "param"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_a_bad_body_is_rejected_by_name(body, code, param):
    engine = FakeEngine()
    async with client_of(await make_app(engine)) as client:
        answer = await client.post(PATH, json=body)
    check_error(answer, 400, code, param)
    assert "output" not in answer.text
    assert engine.requests == []


@pytest.mark.parametrize("given", [["a"], [[5]]], ids=["texts", "ids"])
async def test_with_default_settings_256_inputs_are_admitted_and_not_one_more(given):
    engine = FakeEngine()
    async with client_of(await make_app(engine)) as client:
        check_error(await client.post(PATH, json={"input": given * 257}), 400, "invalid_value", "input")
        assert engine.requests == []
        answer = await client.post(PATH, json={"input": given * 256})
    assert [item["index"] for item in answer.json()["data"]] == [*range(256)]
    assert len(engine.requests) == 256


async def test_the_largest_body_is_admitted_while_others_have_requests_and_leaves_them_their_share():
    config = make_config({"api_key": ("a", "b", "c")})
    engine = FakeEngine(config=config, held=True)

    def send(key, inputs):
        headers = {"authorization": f"Bearer {key}"}
        return asyncio.create_task(client.post(PATH, json={"input": inputs}, headers=headers))

    async with client_of(await make_app(engine, config)) as client:
        tasks = [send("a", ["a"])]
        await until(lambda: len(engine.requests) == 1)
        tasks.append(send("b", ["a"] * MAX_INPUTS))
        await until(lambda: len(engine.requests) == 1 + MAX_INPUTS)
        check_error(await send("b", ["a"]), 503, "overloaded")
        tasks.append(send("c", ["a"]))
        await until(lambda: len(engine.requests) == 2 + MAX_INPUTS)
        engine.release()
        assert [(await task).status_code for task in tasks] == [200, 200, 200]


async def test_inputs_are_rejected_together():
    config = make_config({"max_queue": 1, "max_num_seqs": 1})
    engine = FakeEngine(config=config, held=True)
    async with client_of(await make_app(engine, config)) as client:
        first = asyncio.create_task(client.post(PATH, json={"input": "a"}))
        await until(lambda: engine.requests)
        check_error(await client.post(PATH, json={"input": ["a", "b", "c"]}), 503, "overloaded")
        assert len([one for one in engine.port.posted if isinstance(one, Submit)]) == 1
        engine.release()
        assert (await first).status_code == 200
        assert (await client.post(PATH, json={"input": ["a", "b", "c"]})).status_code == 200


async def test_a_body_counts_as_pending_until_it_is_read_and_too_much_rejects_more():
    app = await make_app(FakeEngine(), max_pending_bytes=2**20)
    pending = app.state.context.streams.pending_of("127.0.0.1")
    received = [{"type": "http.request", "body": b'{"input": "a"}'}]
    sizes = []

    async def receive():
        return received.pop() if received else await asyncio.Event().wait()

    async def send(message):
        sizes.append((len(message.get("body", b"")), pending.num_bytes))

    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": PATH, "raw_path": b"", "query_string": b"", "headers": headers}
    await app({**scope, "client": ("127.0.0.1", 1), "extensions": {}}, receive, send)
    assert sizes[-1][0] == sizes[-1][1] > 0 == pending.num_bytes
    pending.num_bytes = 2**20 + 1
    async with client_of(app) as client:
        check_error(await client.post(PATH, json={"input": "a"}), 503, "overloaded")


async def test_if_one_input_fails_the_answer_fails_and_the_others_are_aborted():
    engine = FakeEngine(held=True)
    async with client_of(await make_app(engine)) as client:
        task = asyncio.create_task(client.post(PATH, json={"input": ["a", "b", "c"]}))
        await until(lambda: engine.requests)
        engine.pause(engine.requests[0].id)
        for request in engine.requests[1:]:
            engine.pause(request.id)
        engine.step()
        engine.port.fail(engine.requests[1].id)
        await turn_loop(20)
        check_error(await task, 500, "engine_error")
        assert sorted(set(engine.aborted)) == [engine.requests[0].id, engine.requests[2].id]


async def test_a_disconnect_aborts_all_inputs():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url:
        async with connected(url) as connection:
            await connection.post(PATH, {"input": ["a", "b"]})
            await until(lambda: len(engine.requests) == 2)
        await until(lambda: len(set(engine.aborted)) == 2)


async def test_a_device_without_embeddings_rejects_them(monkeypatch):
    from dataclasses import replace

    engine = FakeEngine()
    monkeypatch.setattr(engine, "model_info", lambda: replace(MODEL_INFO, hidden_size=0))
    async with client_of(await make_app(engine)) as client:
        check_error(await client.post(PATH, json={"input": "a"}), 400, "unsupported_parameter")
        (model,) = (await client.get("/v1/models")).json()["data"]
    assert model["capabilities"]["embeddings"] is False
