"""The end of a JSON value."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.reading.json_span import JsonSpan

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
)
VALUES = {
    "value": JSON, "places": st.lists(st.integers(0, 999), max_size=6), "indent": st.sampled_from([None, 2]),
}  # fmt: skip


@given(**VALUES)
def test_the_end_is_found_in_every_cut(value, places, indent):
    text = json.dumps(value, indent=indent)
    rest = text + "} , ]"
    ends = sorted({place % len(rest) for place in places})
    span, begin, size = JsonSpan(), 0, 0
    for end in [*ends, len(rest)]:
        if not span.is_complete:
            size = begin + span.scan(rest[begin:end], 0)
        begin = end
    assert (span.is_complete, rest[:size]) == (True, text)


@pytest.mark.parametrize("text", ["}", ",", ":", "<", '{"a": <', '{"a": "\ufdd0', "[1, \ufdd0", "]"])
def test_what_cannot_be_a_value_is_broken(text):
    span = JsonSpan()
    assert span.scan(text, 0) < len(text)
    assert span.is_broken and not span.is_complete


@pytest.mark.parametrize("text", ['{"a', '"\\', "[[1]", "tru", "12"])
def test_the_end_of_the_text_is_not_the_end_of_the_value(text):
    span = JsonSpan()
    assert span.scan(text, 0) == len(text)
    assert not span.is_broken and not span.is_complete
    assert span.is_word == (text in ("tru", "12"))
