"""Requests that the server rejects: status and code are right, no internals are shown, other requests are unaffected.

After every case a control request has the same tokens as before, and no rejected request has reached the engine.
"""

import asyncio
import dataclasses
import logging
import shutil

import httpx
import pytest

from app.checkpoint.checkpoint_folder import EMBEDDED
from app.checkpoint.names import resolve
from app.config.settings import make_config
from app.contract.brownout_effects import MAX_LEVEL
from app.contract.engine_status import EngineState
from app.observe.log import ACCESS_LOGGER
from tests.api.body.rejected_bodies import BODIES, CHAT, TEXT, chat
from tests.api.serving import HANG_S, JSON, client_of, connected, make_app, serving, until
from tests.fakes import MODEL_INFO, FakeEngine, Script, turn_loop
from tests.server.wire import LIMITS, served

CONTROL = {"prompt": [5, 6, 7], "max_tokens": 8}


def check_error(answer: httpx.Response, status: int, code: str, param: str | None = None) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["content-type"] == "application/json"
    assert "/work" not in error["message"] and "Traceback" not in error["message"]


async def control(client: httpx.AsyncClient) -> str:
    answer = await client.post(TEXT, json=CONTROL)
    assert answer.status_code == 200
    return answer.json()["choices"][0]["text"]


@pytest.mark.parametrize(
    ("path", "body", "expected", "param"), [case[1:] for case in BODIES], ids=[c[0] for c in BODIES]
)
async def test_a_bad_body_is_rejected_and_affects_no_other_request(path, body, expected, param):
    engine = FakeEngine()
    async with client_of(await make_app(engine)) as client:
        before = await control(client)
        check_error(await client.post(path, content=body, headers=JSON), *expected, param)
        assert await control(client) == before
    assert len(engine.requests) == 2


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content-type": "text/plain"}, 415, "unsupported_media_type"),
        ({"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        ({"content-type": "multipart/form-data; boundary=x"}, 415, "unsupported_media_type"),
        ({"content-type": ""}, 415, "unsupported_media_type"),
        (JSON | {"content-encoding": "gzip"}, 415, "unsupported_media_type"),
        (JSON | {"host": "evil.example"}, 421, "host_not_allowed"),
    ],
)
async def test_a_request_with_bad_headers_is_rejected(headers, status, code):
    async with client_of(await make_app()) as client:
        check_error(await client.post(CHAT, content=chat(), headers=headers), status, code)
        await control(client)


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
async def test_the_json_content_type_is_recognized_in_every_spelling(content_type):
    async with client_of(await make_app()) as client:
        answer = await client.post(CHAT, content=chat(), headers={"content-type": content_type})
        assert answer.status_code == 200


async def test_a_body_over_the_limit_is_rejected_with_or_without_a_content_length():
    async def pieces():
        for _ in range(4):
            yield b" " * 512

    engine = FakeEngine()
    async with client_of(await make_app(engine, max_request_bytes=1024)) as client:
        for content in (b" " * 1025, pieces()):
            answer = await client.post(CHAT, content=content, headers=JSON)
            check_error(answer, 413, "request_too_large")
            assert answer.headers["connection"] == "close"
        await control(client)


async def test_a_content_length_over_the_limit_is_rejected_before_the_body_is_read():
    async with serving(await make_app(max_request_bytes=1024)) as url, connected(url) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.writer.write(head.encode() + b"Content-Length: 1025\r\n\r\n")
        assert (await connection.head())[0] == 413


async def test_an_endless_body_is_rejected_at_the_limit_and_its_connection_closed():
    async with serving(await make_app(max_request_bytes=1024)) as url, connected(url) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.writer.write(
            head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + b"200\r\n" + b" " * 512 + b"\r\n"
        )
        connection.writer.write(b"400\r\n" + b" " * 1024 + b"\r\n")
        assert (await connection.head())[0] == 413
        assert b"request_too_large" in await connection.reader.read()


@pytest.mark.parametrize("framing", ["Content-Length: 8388608", "Transfer-Encoding: chunked"])
async def test_the_413_is_delivered_to_a_client_that_is_still_sending(framing):
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}\r\n\r\n".encode()
    piece = b" " * 2**16
    if "chunked" in framing:
        piece = b"10000\r\n" + piece + b"\r\n"
    async with served(dataclasses.replace(LIMITS, linger_s=HANG_S), max_request_bytes=1024) as server:
        for _ in range(5):
            async with connected(server.url) as connection:
                connection.writer.write(head)
                for _ in range(16):  # the client is still sending when the response comes
                    connection.writer.write(piece)
                    await connection.writer.drain()
                    await asyncio.sleep(0.001)
                assert (await connection.head())[0] == 413
                assert b"request_too_large" in await connection.reader.read()


async def test_a_disconnect_during_a_body_is_logged_without_a_warning(caplog):
    engine = FakeEngine()
    caplog.set_level(logging.INFO)
    async with serving(await make_app(engine)) as url:
        async with connected(url) as connection:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.writer.write(head.encode() + b"Content-Length: 100\r\n\r\n{")
            await connection.writer.drain()
        await until(lambda: any(record.name == ACCESS_LOGGER for record in caplog.records))
    assert engine.requests == []
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/chat/completions//", 404, "not_found"),
        ("GET", "/readyz/", 404, "not_found"),
        ("GET", "//v1/models", 404, "not_found"),
        ("GET", "/V1/models", 404, "not_found"),
        ("POST", "/v1/rerank", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("HEAD", CHAT, 405, None),
        ("PUT", TEXT, 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("DELETE", "/", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
async def test_an_unknown_path_or_method_is_a_json_error(method, path, status, code):
    async with client_of(await make_app()) as client:
        answer = await client.request(method, path)
        assert answer.status_code == status
        if code is not None:
            assert answer.json()["error"]["code"] == code
        if status == 405:
            assert answer.headers["allow"]


async def test_too_many_sequences_are_rejected_with_the_name_of_the_field():
    engine = FakeEngine()
    engine.model_info = lambda: dataclasses.replace(MODEL_INFO, max_num_seqs=3)  # type: ignore[method-assign]
    beams = {"use_beam_search": True, "beam_width": 4}
    async with client_of(await make_app(engine)) as client:
        for fields, param in (({"n": 4}, "n"), ({"best_of": 4}, "best_of"), (beams, "beam_width")):
            check_error(await client.post(TEXT, json=CONTROL | fields), 400, "invalid_value", param)
        await control(client)


async def test_a_request_that_cannot_fit_the_kv_cache_is_rejected():
    engine = FakeEngine()
    engine.model_info = lambda: dataclasses.replace(MODEL_INFO, kv_capacity_tokens=32)  # type: ignore[method-assign]
    async with client_of(await make_app(engine)) as client:
        check_error(
            await client.post(TEXT, json=CONTROL | {"max_tokens": 60}), 400, "kv_capacity_exceeded", "max_tokens"
        )
        check_error(await client.post(TEXT, json={"prompt": [5] * 64}), 400, "kv_capacity_exceeded", "prompt")
        await control(client)


@pytest.mark.parametrize("stream", [False, True])
async def test_load_shedding_rejects_new_requests_with_a_retry_after(stream):
    engine = FakeEngine(Script(brownout_level=MAX_LEVEL), held=True)
    async with client_of(await make_app(engine)) as client:
        first = asyncio.create_task(client.post(TEXT, json=CONTROL))
        await until(lambda: engine.requests)
        engine.step(2)
        await turn_loop()
        answer = await client.post(CHAT, content=chat(stream=stream), headers=JSON)
        check_error(answer, 503, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        engine.release()
        assert (await first).json()["choices"][0]["text"] == await control(client)
    assert len(engine.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_rejects_requests_with_a_retry_after(stream):
    config = make_config({"max_queue": 0, "max_num_seqs": 1})
    engine = FakeEngine(config=config, held=True)
    async with client_of(await make_app(engine, config)) as client:
        first = asyncio.create_task(client.post(TEXT, json=CONTROL))
        await until(lambda: engine.requests)
        answer = await client.post(CHAT, content=chat(stream=stream), headers=JSON)
        check_error(answer, 503, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        engine.release()
        text_of_first = (await first).json()["choices"][0]["text"]
        assert await control(client) == text_of_first


async def test_behind_a_full_queue_a_body_is_not_even_parsed():
    """A flood of requests that are rejected must cost nearly nothing."""
    config = make_config({"max_queue": 0, "max_num_seqs": 1})
    engine = FakeEngine(config=config, held=True)
    async with client_of(await make_app(engine, config)) as client:
        first = asyncio.create_task(client.post(TEXT, json=CONTROL))
        await until(lambda: engine.requests)
        check_error(await client.post(CHAT, content=b"{", headers=JSON), 503, "overloaded")
        engine.release()
        assert (await first).status_code == 200
        check_error(await client.post(CHAT, content=b"{", headers=JSON), 400, "json_invalid")


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [(EngineState.LOADING, 503, "model_loading"), (EngineState.FAILED, 500, "engine_error")],
)
@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/models", "/v1/models/guide"])
async def test_without_a_model_requests_get_the_reason(state, status, code, path):
    engine = FakeEngine()
    async with client_of(await make_app(engine)) as client:
        engine.port.state = state
        answer = await (client.get(path) if "models" in path else client.post(path, json=CONTROL))
        check_error(answer, status, code)
        assert ("retry-after" in answer.headers) == (status == 503)
        engine.port.state = EngineState.READY
        await control(client)


async def test_new_requests_are_rejected_during_a_drain():
    engine = FakeEngine()
    async with client_of(await make_app(engine)) as client:
        await engine.drain(0)
        answer = await client.post(TEXT, json=CONTROL)
        check_error(answer, 503, "draining")
        assert answer.headers["retry-after"]


async def test_a_model_without_a_chat_template_serves_completions_only(tmp_path):
    source = resolve(EMBEDDED)
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(source / name, tmp_path)
    async with client_of(await make_app(model=str(tmp_path))) as client:
        check_error(await client.post(CHAT, content=chat(), headers=JSON), 400, "no_chat_template")
        await control(client)


async def test_strict_mode_rejects_unknown_fields():
    async with client_of(await make_app(strict=True)) as client:
        check_error(await client.post(CHAT, content=chat(foo=1), headers=JSON), 400, "invalid_value", "foo")
        await control(client)
