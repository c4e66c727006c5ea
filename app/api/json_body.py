"""Reads a request body into one JSON object, and refuses everything that two parsers could read differently."""

from __future__ import annotations

import json

import orjson
from starlette.requests import Request

from app.errors import JsonInvalid, RequestTooLarge, UnsupportedMediaType

MAX_DEPTH = 32
MAX_KEYS = 512


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a POST with a JSON body of at most `max_bytes`.

    Raises:
        UnsupportedMediaType: it is not declared as JSON, or it is compressed (no decompression bombs).
        RequestTooLarge: it is larger; a declared size is refused before a byte is read.
    """
    _check_headers(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def parse_object(body: bytes) -> dict[str, object]:
    """Parse `body` as one JSON object: valid UTF-8, finite numbers, no key twice, bounded depth and width. Any thread.

    Raises:
        JsonInvalid: it is anything else; says what.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise JsonInvalid(f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise JsonInvalid("The body must be one JSON object.")
    check_shape(value)
    # orjson keeps the last of two equal keys; a proxy in front may have looked at the first.
    json.loads(body, object_pairs_hook=_refuse_duplicates)
    return value


def check_shape(value: object, depth: int = 1) -> None:
    """Refuse parsed JSON that is too deep or too wide; `value` lies at level `depth`. Any thread.

    Raises:
        JsonInvalid: more than `MAX_DEPTH` levels, or more than `MAX_KEYS` keys in one object.
    """
    if not isinstance(value, (dict, list)):
        return
    if depth > MAX_DEPTH:
        raise JsonInvalid(f"The body is nested deeper than {MAX_DEPTH} levels.")
    if isinstance(value, dict) and len(value) > MAX_KEYS:
        raise JsonInvalid(f"An object of the body has {len(value)} keys; at most {MAX_KEYS} are allowed.")
    for item in value.values() if isinstance(value, dict) else value:
        check_shape(item, depth + 1)


def _check_headers(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType(
            f"Content-Type is {media_type[:100]!r}; send the body with `Content-Type: application/json`."
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaType(f"Content-Encoding is {encoding[:100]!r}; send the body uncompressed.")


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body is larger than {max_bytes} bytes (max_request_bytes); send less.")


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> None:
    if len({key for key, _ in pairs}) == len(pairs):
        return
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    raise JsonInvalid(f"The key {twice[:100]!r} appears twice in one object; send it once.")
