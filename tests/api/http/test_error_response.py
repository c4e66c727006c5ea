"""Errors on the wire."""

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from app.api.http.error_response import error_response, handle_http_exception, shaped_response
from app.api.http.error_shape import OPENAI_ERRORS
from app.contract.errors import (
    DeadlineExceeded,
    EngineFailed,
    ErrorInfo,
    InvalidApiKey,
    InvalidValue,
    Overloaded,
    QueueTimeout,
    QuireError,
    RequestTooLarge,
    ServiceUnavailable,
)

SCOPE = {"type": "http", "path": "/"}


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (InvalidValue("x"), 400, {}),
        (InvalidApiKey("x"), 401, {"www-authenticate": "Bearer"}),
        (RequestTooLarge("x"), 413, {"connection": "close"}),
        (Overloaded("x"), 503, {"retry-after": "1"}),
        (EngineFailed("x"), 500, {"x-should-retry": "false"}),
        (QueueTimeout("x"), 504, {"x-should-retry": "false"}),
        (DeadlineExceeded("x"), 504, {"x-should-retry": "false"}),
    ],
)
def test_status_and_headers_say_whether_to_retry(error, status, headers):
    response = error_response(error.info(), SCOPE)
    retry_headers = ("www-authenticate", "connection", "retry-after", "x-should-retry")
    assert response.status_code == status
    assert {name: value for name, value in response.headers.items() if name in retry_headers} == headers


def test_every_503_has_a_retry_after():
    def all_kinds(kind: type[QuireError]) -> list[type[QuireError]]:
        return [kind, *(below for child in kind.__subclasses__() for below in all_kinds(child))]

    for kind in all_kinds(ServiceUnavailable):
        assert "retry-after" in error_response(kind("x").info(), SCOPE).headers


def test_an_engine_error_keeps_its_status_and_retry_after():
    response = error_response(
        ErrorInfo("overloaded", "Full.", http_status=503, type="overloaded_error", retry_after_s=9), SCOPE
    )
    assert (response.status_code, response.headers["retry-after"]) == (503, "9")


def test_the_id_of_a_request_is_in_the_header_that_its_api_has():
    named = OPENAI_ERRORS._replace(id_header="its-id")
    for shape, expected in ((OPENAI_ERRORS, None), (named, "abc")):
        assert shaped_response(InvalidValue("x").info(), shape, "abc").headers.get("its-id") == expected


async def test_a_wrong_method_is_told_all_others_in_order():
    request = Request({**SCOPE, "method": "PUT", "headers": [], "query_string": b""})
    response = await handle_http_exception(request, HTTPException(405, headers={"Allow": "POST, GET, DELETE"}))
    assert response.headers["allow"] == "DELETE, GET, POST"
    assert b"PUT is not allowed here; use DELETE, GET, POST." in response.body
