"""Errors before an answer begins have the shape of the API whose path was asked."""

import json
from unittest.mock import patch

import pytest

from app.api.http.error_shape import OPENAI_ERRORS, ErrorShapes, error_body
from app.config.settings import make_config
from app.contract.errors import ErrorInfo, HeadersTooLarge, HostNotAllowed, InvalidValue, RateLimitExceeded
from tests.api.serving import JSON, client_of, connected, make_app, raw, serving
from tests.api.toy_api import PATH, TOY, ToyError, add_toy
from tests.fakes import FakeEngine, Script

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
LIMIT = 4096
KEY = {"authorization": "Bearer secret"}


@pytest.fixture(autouse=True)
def _toy(monkeypatch):
    add_toy(monkeypatch)


def test_the_body_of_openai_has_its_shape():
    info = InvalidValue("No.", param="messages[0].role").info()
    assert json.loads(error_body(info)) == {
        "error": {
            "message": "No.",
            "type": "invalid_request_error",
            "param": "messages[0].role",
            "code": "invalid_value",
        }
    }


@pytest.mark.parametrize("path", [PATH, f"{PATH}/", f"{PATH}/below/it", "/other/x/y"])
def test_the_shape_at_a_route_and_below_it_is_that_of_its_api(path):
    shapes = ErrorShapes([("/toy", OPENAI_ERRORS), (PATH, TOY.errors), ("/other/{name:path}", TOY.errors)])
    assert shapes.of(path) is TOY.errors


@pytest.mark.parametrize("path", ["/toy", "/toy/chats", "/", "", "/v1/chat/completions"])
def test_the_shape_of_all_other_paths_is_openais(path):
    assert ErrorShapes([(PATH, TOY.errors)]).of(path) is OPENAI_ERRORS


@pytest.mark.parametrize(
    ("status", "code", "path", "body"),
    [
        (400, "json_invalid", PATH, b"{"),
        (400, "invalid_value", PATH, raw(CHAT | {"temperature": 9})),
        (404, "model_not_found", PATH, raw(CHAT | {"model": "another"})),
        (404, "not_found", f"{PATH}/nothing", raw(CHAT)),
        (413, "request_too_large", PATH, b" " * (LIMIT + 1)),
    ],
)
async def test_a_request_that_is_wrong_is_rejected_in_the_shape_of_its_path(status, code, path, body):
    config = make_config({"max_request_bytes": LIMIT, "api_key": ["secret"]})
    async with client_of(await make_app(config=config), **JSON, **KEY) as client:
        assert _toy_error(await client.post(path, content=body)) == (status, code)
        other = await client.post(path.replace(PATH, "/v1/chat/completions"), content=body)
        assert (other.status_code, other.json()["error"]["code"]) == (status, code)


async def test_middleware_rejects_in_the_shape_of_the_path():
    config = make_config({"api_key": ["secret"], "allowed_hosts": ["localhost"]})
    async with client_of(await make_app(config=config)) as client:
        assert _toy_error(await client.post(PATH, json=CHAT)) == (401, "invalid_api_key")
        assert _toy_error(await client.post(PATH, json=CHAT, headers=KEY | {"host": "evil"})) == (
            HostNotAllowed.http_status,
            HostNotAllowed.code,
        )
        assert _toy_error(await client.get(PATH, headers=KEY)) == (405, "method_not_allowed")
        assert "error" in (await client.post("/v1/chat/completions", json=CHAT)).json()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "code"), [(500, "engine_error"), (503, "overloaded")])
async def test_a_failure_before_the_first_token_has_the_shape_of_the_path(status, code, stream):
    script = Script(fail_after=0, error=ErrorInfo(code, "No.", http_status=status))
    async with client_of(await make_app(FakeEngine(script))) as client:
        assert _toy_error(await client.post(PATH, json=CHAT | {"stream": stream})) == (status, code)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(RateLimitExceeded("Wait."), 429, "rate_limit_exceeded"), (RuntimeError("broken"), 500, "engine_error")],
)
async def test_what_a_handler_raises_is_answered_in_the_shape_of_the_path(error, status, code):
    engine = FakeEngine()
    with patch.object(engine, "submit_all", side_effect=error):
        async with client_of(await make_app(engine)) as client:
            assert _toy_error(await client.post(PATH, json=CHAT)) == (status, code)


async def test_a_request_that_does_not_reach_the_application_is_rejected_in_the_shape_of_its_path():
    async with serving(await make_app()) as url, connected(url) as connection:
        await connection.post(PATH, {}, x_long="x" * 20_000)
        status, headers = await connection.head()
        body = await connection.reader.readexactly(int(headers["content-length"]))
        assert (status, json.loads(body)) == (431, {"wrong": HeadersTooLarge.code, "request": headers["x-request-id"]})


def _toy_error(response):
    """The status and the code of an error in the toy's shape."""
    error = ToyError(**response.json())
    assert error.request == response.headers["x-request-id"]
    return response.status_code, error.wrong
