"""The middleware of every request: request ids, access log, hosts, keys."""

import asyncio
import json
import logging
from functools import partial

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from app.api.http.accounts import ApiKeys
from app.api.http.error_shape import ErrorShapes
from app.api.http.middleware import RequestChecks, Trace, allowed_hosts, check_host, check_key
from app.config.settings import make_config
from app.contract.engine_status import EngineState
from app.contract.events import Usage
from app.observe.log import ACCESS_LOGGER, JsonFormatter
from app.observe.request_log import RequestLog
from tests.api.serving import client_of, make_app
from tests.fakes import FakeClock, FakeEngine, Script


async def hello(request):
    return PlainTextResponse("hello")


async def broken(request):
    raise ZeroDivisionError("planted failure")


class Panic(BaseException):
    """A panic of a native library, which is not an `Exception`."""


async def panicked(request):
    raise Panic("planted failure")


async def cancelled(request):
    raise asyncio.CancelledError


async def gone(request):
    raise ClientDisconnect


async def socket(websocket):
    await websocket.accept()
    await websocket.close(4400)


ROUTES = [Route("/", hello), Route("/v1/x", hello), Route("/broken", broken), Route("/gone", gone),
          Route("/panicked", panicked), Route("/cancelled", cancelled), WebSocketRoute("/ws", socket)]  # fmt: skip

CHECK_KEY = partial(check_key, ApiKeys(make_config({"api_key": ("k",)}).server))


def traced() -> Starlette:
    return Starlette(
        routes=ROUTES, middleware=[Middleware(Trace, clock=FakeClock(), log=RequestLog(), shapes=ErrorShapes())]
    )


@pytest.fixture
def lines(caplog):
    """The access log's lines so far, parsed."""
    caplog.set_level(logging.INFO, ACCESS_LOGGER)

    def read():
        records = [record for record in caplog.records if record.name == ACCESS_LOGGER]
        return [json.loads(JsonFormatter().format(record)) for record in records]

    return read


async def test_a_valid_request_id_is_echoed_and_an_invalid_one_is_replaced():
    async with client_of(traced()) as client:
        assert (await client.get("/", headers={"x-request-id": "a.B-9_"})).headers["x-request-id"] == "a.B-9_"
        for bad in ("", "x" * 65, "a b", "a/b", "ü".encode()):
            answer = await client.get("/", headers={"x-request-id": bad})
            assert len(answer.headers["x-request-id"]) == 32
        first, second = [(await client.get("/")).headers["x-request-id"] for _ in range(2)]
        assert first != second


async def test_the_session_id_is_echoed():
    async with client_of(traced()) as client:
        assert (await client.get("/", headers={"x-session-id": "user-7"})).headers["x-session-id"] == "user-7"
        assert "x-session-id" not in (await client.get("/")).headers


async def test_errors_have_the_request_id():
    async with client_of(await make_app()) as client:
        for path in ("/nope", "/v1/chat/completions"):
            assert (await client.get(path, headers={"x-request-id": "me"})).headers["x-request-id"] == "me"


async def test_every_request_is_logged_once_with_its_reason(lines):
    engine = FakeEngine()
    async with client_of(await make_app(engine, api_key=("k",)), authorization="Bearer k") as client:
        await client.post("/v1/completions", json={"prompt": [5], "max_tokens": 2}, headers={"x-request-id": "one"})
        await client.post("/v1/completions", json={"prompt": []})
        await client.get("/nope")
        await client.get("/livez")  # a successful probe is not logged
        await client.get("/v1/models", headers={"x-session-id": "s"})
        await client.get("/metrics")  # nor is a scrape
        await client.get("/metrics", headers={"authorization": "Bearer wrong"})
    found = [(line["method"], line["path"], line["status"], line["reason"]) for line in lines()]
    assert found == [
        ("POST", "/v1/completions", 200, "length"),
        ("POST", "/v1/completions", 400, "invalid_value"),
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/models", 200, None),
        ("GET", "/metrics", 401, "invalid_api_key"),
    ]
    assert (lines()[0]["request_id"], lines()[3]["session_id"]) == ("one", "s")
    assert all(line["duration_ms"] >= 0 and "wrong" not in json.dumps(line) for line in lines())


@pytest.mark.parametrize(
    ("state", "num_lines"), [(EngineState.READY, 0), (EngineState.LOADING, 0), (EngineState.FAILED, 3)]
)
async def test_probes_are_logged_only_if_the_server_has_failed(lines, state, num_lines):
    engine = FakeEngine()
    engine.port.state = state
    async with client_of(await make_app(engine)) as client:
        for path in ("/livez", "/readyz", "/health"):
            await client.get(path)
    assert len(lines()) == num_lines


@pytest.mark.parametrize("stream", [False, True])
async def test_the_log_line_of_a_request_has_its_token_counts(lines, stream):
    engine = FakeEngine(Script(usage=Usage(0, 0, 3, 2, 50)))
    body = {"prompt": [5, 6], "max_tokens": 4, "n": 3, "stream": stream}
    async with client_of(await make_app(engine)) as client:
        await client.post("/v1/completions", json=body)
        engine.port.script = Script(fail_after=2)
        await client.post("/v1/completions", json=body)
        await client.post("/v1/completions", json=body | {"n": 0})
    complete, failed, rejected = lines()
    names = ("n", "prompt_tokens", "completion_tokens", "cached_tokens", "preemptions", "lost_tokens")
    assert [complete.get(name) for name in names] == [3, 2, 12, 3, 2, 50]
    assert [failed.get(name) for name in names] == [3, 2, 6, None, None, None]
    assert rejected.keys().isdisjoint(names)


@pytest.mark.parametrize("prompt", [[5, 6], [[5], [6]]], ids=["one", "several"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_log_line_of_a_request_has_its_times(lines, stream, prompt):
    engine = FakeEngine()
    async with client_of(await make_app(engine)) as client:
        await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4, "n": 2, "stream": stream})
        engine.port.script = Script(fail_after=2)
        await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4, "stream": stream})
    complete, failed = lines()
    assert (complete["queue_ms"], complete["first_token_ms"]) == (1.0, 2.0), "the times of the scripted engine"
    assert failed.keys().isdisjoint({"queue_ms", "first_token_ms"})


@pytest.mark.parametrize("path", ["/broken", "/panicked"])
async def test_an_internal_error_is_a_500_without_details(path, caplog):
    async with client_of(traced()) as client:
        answer = await client.get(path)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "engine_error"
    assert "ZeroDivision" not in answer.text
    assert answer.headers["x-should-retry"] == "false"
    assert "planted failure" in caplog.text


async def test_a_request_cancelled_by_a_shutdown_gets_a_503(lines, caplog):
    async with client_of(traced()) as client:
        answer = await client.get("/cancelled")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert lines()[0]["reason"] == "draining"
    assert all(record.levelno < logging.WARNING for record in caplog.records)


async def test_a_disconnected_client_is_logged_without_a_warning(lines, caplog):
    async with client_of(traced()) as client:
        with pytest.raises(AssertionError):  # httpx requires a response
            await client.get("/gone")
    assert lines()[0]["reason"] == "client_disconnected"
    assert all(record.levelno < logging.WARNING for record in caplog.records)


def test_a_websocket_is_logged_with_its_close_code(lines):
    with (
        TestClient(traced()) as client,
        client.websocket_connect("/ws") as websocket,
        pytest.raises(WebSocketDisconnect),
    ):
        websocket.receive_text()
    assert [(line["method"], line["status"], line["reason"]) for line in lines()] == [("WEBSOCKET", 101, "closed_4400")]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:9999", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("192.168.1.1", 421),
        ("localhost/stat?", 400),
        ("a@localhost", 400),
        ("local host", 400),
        ("", 400),
        ("localhost:x", 400),
    ],
)
async def test_without_a_key_only_local_hosts_are_served(host, status):
    async with client_of(await make_app()) as client:
        assert (await client.get("/livez", headers={"host": host})).status_code == status


async def test_two_host_headers_are_rejected():
    guard = RequestChecks(hello_app, [partial(check_host, {"localhost"}, False)])
    async with client_of(guard) as client:
        answer = await client.get("/", headers=[("host", "localhost"), ("host", "evil.example")])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "http_invalid")


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({"allowed_hosts": ("chat.example",)}, "chat.example", 200),
        ({"allowed_hosts": ("chat.example",)}, "localhost", 421),
        ({"allowed_hosts": ("*",)}, "evil.example", 200),
        ({"api_key": ("k",)}, "evil.example", 200),
        ({"api_key": ("k",), "allowed_hosts": ("chat.example",)}, "evil.example", 421),
        ({"host": "0.0.0.0", "insecure": True}, "192.168.1.7:8000", 200),
        ({"host": "0.0.0.0", "insecure": True}, "evil.example", 421),
        ({"host": "::1"}, "[::1]:8000", 200),
        ({"host": "10.0.0.5", "insecure": True}, "10.0.0.5", 200),
        ({"host": "10.0.0.5", "insecure": True}, "10.0.0.6", 421),
    ],
)
async def test_settings_decide_which_hosts_are_served(settings, host, status):
    async with client_of(await make_app(**settings)) as client:
        assert (await client.get("/livez", headers={"host": host})).status_code == status


def test_the_default_hosts_are_the_local_names_and_the_address_bound_to():
    hosts, _ = allowed_hosts(make_config({"host": "10.0.0.5", "insecure": True}).server)
    assert set(hosts) == {"localhost", "127.0.0.1", "[::1]", "10.0.0.5"}


async def test_only_the_public_paths_need_no_key():
    guarded = RequestChecks(hello_app, [CHECK_KEY])
    async with client_of(guarded) as client:
        for path in ("/", "/preview", "/livez", "/readyz", "/health", "/static/app.js"):
            assert (await client.get(path)).status_code == 200, path
        for path in ("/metrics", "/v1/models", "/nope", "/static", "/livez/", "/LIVEZ", "/livez;x", "/ws"):
            assert (await client.get(path)).status_code == 401, path
            assert (await client.get(path, headers={"x-api-key": "k"})).status_code == 200, path


async def hello_app(scope, receive, send):
    await PlainTextResponse("hello")(scope, receive, send)


def test_a_websocket_may_send_its_key_later_but_a_wrong_one_is_rejected_at_once():
    app = RequestChecks(Starlette(routes=ROUTES), [CHECK_KEY])
    with TestClient(app) as client:
        for headers in ({}, {"x-api-key": "k"}):
            with client.websocket_connect("/ws", headers=headers) as websocket:
                with pytest.raises(WebSocketDisconnect) as closed:
                    websocket.receive_text()
                assert closed.value.code == 4400
        for path, headers in (("/ws", {"x-api-key": "wrong"}), ("/ws", {"authorization": "Bearer x"}), ("/other", {})):
            with pytest.raises(WebSocketDisconnect), client.websocket_connect(path, headers=headers):
                pass
