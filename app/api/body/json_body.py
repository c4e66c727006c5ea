"""Reads a request body as one JSON object, and rejects what two parsers could interpret differently."""

from __future__ import annotations

import json

import orjson
from starlette.requests import Request

from app.api.http.body_buffer import BodyBuffer
from app.api.http.byte_shares import Receiving
from app.contract.errors import JsonInvalid, Overloaded, RequestTooLarge, UnsupportedMediaType
from app.text.reading.json_text import JsonCounts, count_json

RETRY_S = 1
MAX_DEPTH = 32
MAX_KEYS = 512
MAX_VALUES = 2**19  # of any kind; parsing this many numbers blocks all threads for about 20 ms
MAX_PARTS = 2**18  # objects, lists and strings, keys included: these take longer, for about 20 ms too
MAX_NAMED_VALUES = 2**16
"""A body of more values is not read once more, by Python, to say which key appears twice: these take up to 30 ms."""


async def read_body(request: Request, max_bytes: int, receiving: Receiving) -> bytes:
    """Return the body of a POST with a JSON body of at most `max_bytes`. Loop only; cancel-safe.

    Raises:
        UnsupportedMediaType: the body is not declared as JSON, or is compressed (no decompression bombs).
        RequestTooLarge: the body is larger; a declared size is rejected before a byte is read.
        Overloaded: its sender has too much that is not complete.
    """
    _check_headers(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = BodyBuffer(max_bytes)
    try:
        async for chunk in request.stream():
            num_bytes = body.num_bytes + len(chunk)
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
            if not receiving.has(num_bytes):
                raise Overloaded(
                    "The large bodies that you send at once, and that are not complete, have too many bytes together; "
                    "send fewer at once.",
                    retry_after_s=RETRY_S,
                )
            body.add(chunk)
    finally:
        receiving.has(0)
    return body.take()


def parse_object(body: bytes) -> dict[str, object]:
    """Parse `body` as one JSON object: valid UTF-8, finite numbers, no key twice, bounded depth and width. Any thread.

    A body with too many values is rejected before it is parsed, because the parser would block other threads.

    Raises:
        JsonInvalid: the body is anything else; the error says what.
    """
    counts = _check_size(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise JsonInvalid(f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise JsonInvalid("The body must be one JSON object.")
    if check_shape(value) != counts.num_keys:
        # orjson keeps the last of two equal keys; a proxy may have used the first one.
        if counts.num_values <= MAX_NAMED_VALUES:
            json.loads(body, object_pairs_hook=_reject_duplicates)
        raise JsonInvalid("A key appears twice in one object of the body; send it once.")
    return value


def check_shape(value: object, depth: int = 1) -> int:
    """Check depth and width of parsed JSON, of which `value` is at level `depth`; return the number of all keys.

    Raises:
        JsonInvalid: more than `MAX_DEPTH` levels, or more than `MAX_KEYS` keys in one object.

    Any thread.
    """
    if not isinstance(value, (dict, list)):
        return 0
    if depth > MAX_DEPTH:
        raise JsonInvalid(f"The body is nested deeper than {MAX_DEPTH} levels.")
    num_keys = len(value) if isinstance(value, dict) else 0
    if num_keys > MAX_KEYS:
        raise JsonInvalid(f"An object of the body has {num_keys} keys; at most {MAX_KEYS} are allowed.")
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, (dict, list)):
            num_keys += check_shape(item, depth + 1)
    return num_keys


def _check_size(body: bytes) -> JsonCounts:
    """Reject JSON with too many values, without parsing it; return the counts, in which repeated keys are repeated."""
    counts = count_json(body, MAX_PARTS)
    if counts.num_parts > MAX_PARTS:
        raise JsonInvalid(
            f"The body has {counts.num_parts} objects, lists and strings; at most {MAX_PARTS} are allowed."
        )
    if counts.num_values > MAX_VALUES:
        raise JsonInvalid(f"The body has about {counts.num_values} values; at most {MAX_VALUES} are allowed.")
    return counts


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


def _reject_duplicates(pairs: list[tuple[str, object]]) -> None:
    if len(pairs) > MAX_KEYS:
        raise JsonInvalid(f"An object of the body has {len(pairs)} keys; at most {MAX_KEYS} are allowed.")
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            raise JsonInvalid(f"The key {key[:100]!r} appears twice in one object; send it once.")
        keys.add(key)
