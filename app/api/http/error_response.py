"""HTTP responses for errors: JSON in the shape that clients of the path's API expect, headers that control retries."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from app.api.http.access_log import access_record
from app.api.http.error_shape import ErrorShape, ErrorShapes
from app.api.http.other_paths import API_PATHS, advice
from app.contract.errors import NOT_OURS, ErrorInfo, HttpInvalid, MethodNotAllowed, NotFound, QuireError

# Raised when a task is ended from outside. Everything else that a request raises is a failure of the request, even a
# BaseException: a panic inside a native library is one.
FROM_OUTSIDE = (asyncio.CancelledError, GeneratorExit, *NOT_OURS)
SHAPES = "quire.error_shapes"
"""The name of the server's `ErrorShapes` in a scope; without them all errors have OpenAI's shape."""
_FROM_STATUS = {404: NotFound, 405: MethodNotAllowed}


def error_response(error: ErrorInfo, scope: Scope) -> Response:
    """Return the response for an error that occurs before a response has begun, as the API of its path writes it."""
    shapes: ErrorShapes = scope.get(SHAPES) or ErrorShapes()
    return shaped_response(error, shapes.of(scope["path"]), access_record(scope).request_id)


def shaped_response(error: ErrorInfo, shape: ErrorShape, request_id: str) -> Response:
    """Return the response for an error, in a shape."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if error.http_status in (500, 504):
        # SDKs retry after every 5xx; here the request would fail again, or its deadline is over.
        headers["x-should-retry"] = "false"
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.http_status == 413:
        headers["connection"] = "close"  # the rest of the body is not read
    if shape.id_header:
        headers[shape.id_header] = request_id
    body = msgspec.json.encode(shape.fill(error, request_id))
    return Response(body, error.http_status, headers, "application/json")


async def handle_quire_error(request: Request, error: Exception) -> Response:
    """Answer with a QuireError (Starlette exception handler)."""
    assert isinstance(error, QuireError)
    access_record(request.scope).reason = error.code
    return error_response(error.info(), request.scope)


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Answer with an error of Starlette's router: unknown path, wrong method (Starlette exception handler).

    A path with a trailing slash is redirected to the path without it, with method and body (307).
    """
    assert isinstance(error, HTTPException)
    given = str(request.scope["path"])
    path = given.removesuffix("/")
    if error.status_code == 404 and path != given and (path in API_PATHS or path.startswith("/v1/models/")):
        query = f"?{request.url.query}" if request.url.query else ""
        return Response(status_code=307, headers={"location": quote(path) + query})
    headers = dict(error.headers or {})
    if "Allow" in headers:  # of a set, whose order is another one in each process
        headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
    kind = _FROM_STATUS.get(error.status_code, HttpInvalid)
    message = {
        404: advice(given),
        405: f"{request.method} is not allowed here; use {headers.get('Allow', 'another method')}.",
    }.get(error.status_code, str(error.detail))
    access_record(request.scope).reason = kind.code
    response = error_response(kind(message).info(), request.scope)
    response.headers.update(headers)
    return response
