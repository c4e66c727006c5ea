"""JSON in texts is parsed within limits, and counted without parsing."""

from __future__ import annotations

import json

import pytest

from app.text.reading import json_text
from app.text.reading.json_text import MAX_DIGITS, MAX_VALUES, JsonCounts, JsonTooLarge, count_json, parse_json


@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_has_at_most_64_digits(sign):
    longest = sign + "9" * MAX_DIGITS
    assert parse_json(f'{{"a": [{longest}]}}') == {"a": [int(longest)]}
    with pytest.raises(JsonTooLarge, match=f"^has an integer of {MAX_DIGITS + 1} digits; at most {MAX_DIGITS} are"):
        parse_json(f'{{"a": [{longest}9]}}')


def test_digits_of_texts_and_fractions_are_not_counted():
    digits = "9" * 5000
    assert parse_json(f'["{digits}", 0.{digits}, 1e308]') == [digits, 1.0, 1e308]


@pytest.mark.parametrize("item", ["1", "1.5", '"a"', "[]", '{"a": 1}'])
def test_more_values_than_allowed_are_rejected_before_parsing(monkeypatch, item):
    monkeypatch.setattr(json_text.json, "loads", None)
    with pytest.raises(JsonTooLarge, match=rf"has about \d+ values; at most {MAX_VALUES} are allowed"):
        parse_json(f"[{','.join([item] * (MAX_VALUES + 1))}]")


def test_a_long_text_with_many_commas_is_one_value():
    text = json.dumps({"code": '[1, "\\", {2: 3}], ' * MAX_VALUES})
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "{", "", "[" * 100_000, "[" * 10_000])
def test_what_is_not_json_is_rejected(text):
    with pytest.raises((ValueError, RecursionError)):
        parse_json(text)


def test_parts_keys_and_values_are_counted():
    assert count_json(rb'{"a": [1, {"b\\": "}:,["}, 2.5, null], "\"": {}}', 100) == JsonCounts(8, 3, 12)
    assert count_json(b'["a", "b", "c"]', 2) == JsonCounts(3)
