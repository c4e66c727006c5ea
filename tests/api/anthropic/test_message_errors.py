"""Errors of Anthropic's API, whoever rejects the request."""

from unittest.mock import patch

import pytest

from app.api.anthropic.message_errors import MessageError, MessageErrorFields
from app.config.settings import make_config
from app.contract.engine_status import EngineState
from app.contract.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    EngineFailed,
    ErrorInfo,
    IdempotencyConflict,
    InvalidValue,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    QuireError,
    RateLimitExceeded,
    RequestTimeout,
    TransferEncodingUnknown,
)
from tests.api.anthropic.messages import BODY, COUNT, PATH
from tests.api.serving import JSON, client_of, connected, make_app, raw, serving
from tests.fakes import FakeEngine, Script

KEY = {"x-api-key": "secret"}
LIMIT = 4096


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidValue("No."), "invalid_request_error"),
        (RequestTimeout("Late."), "invalid_request_error"),
        (IdempotencyConflict("No."), "invalid_request_error"),
        (PermissionDenied("No."), "permission_error"),
        (ModelNotFound("No."), "not_found_error"),
        (RateLimitExceeded("No."), "rate_limit_error"),
        (EngineFailed("No."), "api_error"),
        (TransferEncodingUnknown("No."), "api_error"),
        (Overloaded("No."), "overloaded_error"),
        (DeadlineExceeded("No."), "timeout_error"),
    ],
)
def test_the_type_of_an_error_is_that_of_its_status(error: QuireError, expected: str):
    assert MessageErrorFields.of(error.info()).type == expected


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidValue("top_p is 3.", param="top_p"), "top_p is 3."),
        (InvalidValue("It is wrong.", param="messages"), "messages: It is wrong."),
        (InvalidValue("It is wrong."), "It is wrong."),
        (ContextLengthExceeded("prompt is too long: 3 tokens > 2 maximum", param="messages"),
         "prompt is too long: 3 tokens > 2 maximum"),
    ],
)  # fmt: skip
def test_the_message_names_the_field(error: QuireError, message: str):
    assert MessageErrorFields.of(error.info()).message == message


def check(response, status: int, kind: str) -> str:
    """Check an error in Anthropic's shape; return its message."""
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (status, "error", kind), response.text
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert body.keys() == {"type", "error", "request_id"} and body["error"].keys() == {"type", "message"}
    return body["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "kind"),
    [
        ("POST", PATH, {}, raw(BODY), 401, "authentication_error"),
        ("POST", PATH, {"x-api-key": "other"}, raw(BODY), 401, "authentication_error"),
        ("POST", PATH, KEY | {"host": "evil"}, raw(BODY), 421, "invalid_request_error"),
        ("POST", PATH, KEY | {"content-type": "text/plain"}, raw(BODY), 415, "invalid_request_error"),
        ("POST", PATH, KEY, b" " * (LIMIT + 1), 413, "invalid_request_error"),
        ("POST", PATH, KEY, b"{", 400, "invalid_request_error"),
        ("POST", PATH, KEY, raw(BODY | {"model": "x"}), 404, "not_found_error"),
        ("POST", COUNT, KEY, raw(BODY | {"model": "x"}), 404, "not_found_error"),
        ("GET", PATH, KEY, b"", 405, "invalid_request_error"),
        ("GET", COUNT, KEY, b"", 405, "invalid_request_error"),
        ("POST", f"{PATH}/batches", KEY, raw(BODY), 404, "not_found_error"),
        ("GET", f"{PATH}/batches/msgbatch_1/results", KEY, b"", 404, "not_found_error"),
    ],
)
async def test_a_rejected_request_has_an_error_of_anthropics(method, path, headers, body, status, kind):
    config = make_config({"max_request_bytes": LIMIT, "api_key": ["secret"], "allowed_hosts": ["localhost"]})
    async with client_of(await make_app(config=config)) as client:
        check(await client.request(method, path, content=body, headers=JSON | headers), status, kind)


async def test_a_key_comes_in_either_header():
    config = make_config({"api_key": ["secret"]})
    async with client_of(await make_app(config=config)) as client:
        for headers in (KEY, {"authorization": "Bearer secret"}):
            assert (await client.post(f"{PATH}?beta=true", json=BODY, headers=headers)).status_code == 200


@pytest.mark.parametrize("path", [PATH, COUNT])
async def test_a_slash_at_the_end_is_redirected(path):
    async with client_of(await make_app()) as client:
        answer = await client.post(f"{path}/", json=BODY)
    assert (answer.status_code, answer.headers["location"]) == (307, path)


async def test_batches_are_told_what_to_use():
    async with client_of(await make_app()) as client:
        message = check(await client.post(f"{PATH}/batches", json={}), 404, "not_found_error")
    assert message == (
        "/v1/messages/batches belongs to Anthropic's API of batches, which this server does not have; "
        "use /v1/messages for each request."
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Overloaded("Full.", retry_after_s=7), 503, "overloaded_error"),
        (Draining("End."), 503, "overloaded_error"),
        (RateLimitExceeded("Wait.", retry_after_s=7), 429, "rate_limit_error"),
        (RuntimeError("broken"), 500, "api_error"),
    ],
)
async def test_what_the_engine_refuses_has_an_error_of_anthropics(error, status, kind, stream):
    engine = FakeEngine()
    with patch.object(engine, "submit_all", side_effect=error):
        async with client_of(await make_app(engine)) as client:
            response = await client.post(PATH, json=BODY | {"stream": stream})
    check(response, status, kind)
    if getattr(error, "retry_after_s", None) == 7:
        assert response.headers["retry-after"] == "7"
    assert response.headers.get("x-should-retry") == ("false" if status == 500 else None)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_that_has_passed_is_no_reason_to_retry(stream):
    script = Script(fail_after=0, error=DeadlineExceeded("Late.").info())
    async with client_of(await make_app(FakeEngine(script))) as client:
        response = await client.post(PATH, json=BODY | {"stream": stream})
    check(response, 504, "timeout_error")
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", [PATH, COUNT])
async def test_a_model_that_loads_is_overloaded(path):
    engine = FakeEngine()
    engine.port.state = EngineState.LOADING
    async with client_of(await make_app(engine)) as client:
        check(await client.post(path, json=BODY), 503, "overloaded_error")


async def test_a_request_that_does_not_reach_the_application_has_an_error_of_anthropics():
    async with serving(await make_app()) as url, connected(url) as connection:
        await connection.post(PATH, {}, x_long="x" * 20_000)
        status, headers = await connection.head()
        body = await connection.reader.readexactly(int(headers["content-length"]))
    assert status == 431 and headers["request-id"] == headers["x-request-id"]
    assert body.startswith(b'{"type":"error","error":{"type":"invalid_request_error","message":')


async def test_other_paths_keep_the_shape_of_openai():
    async with client_of(await make_app()) as client:
        for path in ("/v1/models/x", "/v1/message", "/v1/chat/completions"):
            answer = await client.get(path)
            assert "param" in answer.json()["error"] and "request-id" not in answer.headers


def test_an_error_has_the_id_of_its_request():
    error = MessageError.of(ErrorInfo("x", "No.", http_status=400), "abc")
    assert (error.type, error.request_id) == ("error", "abc")
