"""Bodies: one JSON object that every parser reads the same, or a refusal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.json_body import MAX_DEPTH, MAX_KEYS, check_shape, parse_object
from app.errors import JsonInvalid

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
def test_what_is_not_one_finite_json_object_is_refused(body):
    with pytest.raises(JsonInvalid):
        parse_object(body)


@pytest.mark.parametrize("body", [b'{"model":"a","model":"b"}', b'{"a":[{"b":1,"c":2,"b":1}]}', rb'{"a":1,"\u0061":2}'])
def test_a_key_that_appears_twice_in_one_object_is_refused(body):
    with pytest.raises(JsonInvalid, match="twice"):
        parse_object(body)


def test_the_same_key_in_two_objects_is_right():
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


def test_objects_parsed_elsewhere_have_the_same_limits():
    deep: dict[str, object] = {}
    for _ in range(MAX_DEPTH):
        deep = {"a": deep}
    with pytest.raises(JsonInvalid):
        check_shape(deep)
