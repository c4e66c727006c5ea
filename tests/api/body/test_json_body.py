"""Bodies: one JSON object that every parser reads the same; anything else is rejected."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from app.api.body import json_body
from app.api.body.json_body import (
    MAX_DEPTH,
    MAX_KEYS,
    MAX_NAMED_VALUES,
    MAX_PARTS,
    check_shape,
    parse_object,
    read_body,
)
from app.api.http import byte_shares
from app.api.http.byte_shares import ByteShares, Receiving
from app.contract.errors import JsonInvalid, Overloaded

KEYS = st.text(max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_object_is_read_as_json_does(value):
    assert parse_object(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{} x",
        b'{"a":1,}',
        b"// comment\n{}",
        b"\xef\xbb\xbf{}",
        b"[]",
        b'"text"',
        b"null",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b'{"a":"\xff"}',
        rb'{"a":"\ud800"}',
        b"{'a':1}",
        b"[" * 200_000,
    ],
)
def test_anything_but_one_finite_json_object_is_rejected(body):
    with pytest.raises(JsonInvalid):
        parse_object(body)


@pytest.mark.parametrize("body", [b'{"model":"a","model":"b"}', b'{"a":[{"b":1,"c":2,"b":1}]}', rb'{"a":1,"\u0061":2}'])
def test_a_duplicate_key_in_one_object_is_rejected(body):
    with pytest.raises(JsonInvalid, match="twice"):
        parse_object(body)


def test_a_duplicate_key_in_a_large_body_is_not_looked_for_by_python(monkeypatch):
    monkeypatch.setattr(json_body.json, "loads", None)
    with pytest.raises(JsonInvalid, match="A key appears twice in one object of the body"):
        parse_object(b'{"a":1,"a":[' + b"1," * MAX_NAMED_VALUES + b"1]}")


def test_the_same_key_in_two_objects_is_accepted():
    assert parse_object(b'{"a":{"b":1},"c":{"b":1}}') == {"a": {"b": 1}, "c": {"b": 1}}


def test_nesting_has_a_limit():
    def nested(levels: int) -> bytes:
        return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    parse_object(nested(MAX_DEPTH))
    with pytest.raises(JsonInvalid, match="nested"):
        parse_object(nested(MAX_DEPTH + 1))


def test_the_number_of_keys_has_a_limit():
    def wide(keys: int) -> bytes:
        return json.dumps({"a": {str(key): 0 for key in range(keys)}}).encode()

    parse_object(wide(MAX_KEYS))
    with pytest.raises(JsonInvalid, match="keys"):
        parse_object(wide(MAX_KEYS + 1))


def test_check_shape_has_the_same_limits():
    deep: dict[str, object] = {}
    for _ in range(MAX_DEPTH):
        deep = {"a": deep}
    with pytest.raises(JsonInvalid):
        check_shape(deep)


@pytest.mark.parametrize(
    ("item", "count", "what"),
    [
        (b"[]", 1_300_000, "objects, lists and strings"),
        (b"{}", 1_300_000, "objects, lists and strings"),
        (b'""', 1_300_000, "objects, lists and strings"),
        (b'{"":""}', 500_000, "objects, lists and strings"),
        (b"1", 2_000_000, "values"),
    ],
)
def test_a_body_with_too_many_values_is_rejected_before_parsing(monkeypatch, item, count, what):
    monkeypatch.setattr(json_body.orjson, "loads", None)
    monkeypatch.setattr(json_body.json, "loads", None)
    with pytest.raises(JsonInvalid, match=what):
        parse_object(b'{"x":[' + b",".join([item] * count) + b"]}")


def test_the_number_of_parts_has_a_limit():
    def parts(count: int) -> bytes:
        return b'{"x":[' + b",".join([b'""'] * (count - 3)) + b"]}"  # beside the object, its key and the list

    parse_object(parts(MAX_PARTS))
    with pytest.raises(JsonInvalid, match=f"has {MAX_PARTS + 1} objects, lists and strings; at most {MAX_PARTS} are"):
        parse_object(parts(MAX_PARTS + 1))


def test_many_copies_of_one_key_are_rejected_before_comparison(monkeypatch):
    monkeypatch.setattr(json_body.json, "loads", None)
    keys = b",".join(b'"%d":1' % number for number in range(511))
    with pytest.raises(JsonInvalid, match="objects, lists and strings"):
        parse_object(b"{" + keys + b',"a":1' * 690_000 + b"}")


def test_too_many_keys_are_rejected_before_comparison():
    class Key(str):
        compared = 0

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            Key.compared += 1
            return str.__eq__(self, other)

    pairs = [(Key(number), 0) for number in range(MAX_KEYS + 1)]
    with pytest.raises(JsonInvalid, match="keys"):
        json_body._reject_duplicates(pairs)
    assert Key.compared == 0


@pytest.mark.parametrize(
    "text", ['"', "\\", '\\"', '\\\\"', '":"' * 9, "[{,:}]" * 20_000, '\\"[{' * 20_000, "\n\u00e9\\u"]
)
def test_json_syntax_inside_strings_is_not_counted(text):
    body = {text: [text, {text: {text: text, "x": [text]}}]}
    assert parse_object(json.dumps(body).encode()) == body
    assert parse_object(json.dumps(body, ensure_ascii=False).encode()) == body


def test_a_valid_body_is_parsed_once(monkeypatch):
    monkeypatch.setattr(json_body.json, "loads", None)  # the second parser, which names a duplicate key
    assert parse_object(b'{"a":{"b":":"},"c":[{"b":1},{"b":2}]}') == {"a": {"b": ":"}, "c": [{"b": 1}, {"b": 2}]}


async def test_a_body_that_is_more_than_the_senders_share_is_refused(monkeypatch):
    monkeypatch.setattr(byte_shares, "MAX_BYTES", 600_000)
    shares = ByteShares(0)
    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    piece, last = [{"type": "http.request", "body": bytes(100_000), "more_body": more} for more in (True, False)]

    async def read(*messages):
        waiting = iter(messages)

        async def receive():
            return next(waiting)

        return await read_body(Request(scope, receive), 2**20, Receiving(shares, "client"))

    assert len(await read(piece, piece, last)) == 300_000
    with pytest.raises(Overloaded, match="send fewer at once"):
        await read(piece, piece, piece, last)
    assert shares.num_bytes == 0
