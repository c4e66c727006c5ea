"""JSON in one line and in pieces."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.wire.json_line import dump_line, dump_pieces, later, text_line, written

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


class Inner(msgspec.Struct):
    values: list[int]
    text: str


class Outer(msgspec.Struct):
    text: str
    inner: list[Inner]
    number: int | None = None


@given(TEXTS | st.sampled_from(["\u2028", "a\u2029b", "\x85", "\0", "é\r\n"]))
def test_a_text_is_the_same_line_from_both_writers(text: str):
    line = text_line(text)
    assert line == dump_line(text)
    assert json.loads(line) == text and len(line.decode().splitlines()) == 1


@given(TEXTS)
def test_a_struct_is_one_line_with_all_of_its_texts(text: str):
    line = text_line(Outer(text, [Inner([1], text)]))
    assert json.loads(line) == {"text": text, "inner": [{"values": [1], "text": text}], "number": None}
    assert len(line.decode().splitlines()) == 1


@pytest.mark.parametrize("text", ["", "plain", "\0", "\\u0000", '"\0"'])
def test_fields_that_come_later_are_written_where_they_stand(text: str):
    begun = []

    def pieces(name: str, *parts: bytes) -> Any:
        begun.append(name)
        yield from parts

    first, second = later(pieces("first", b"[1", b",2]")), later(pieces("second", b"[]"))
    found = dump_pieces(Outer(text, [Inner(first, text), Inner(second, "b")], later(pieces("third", b"3"))))
    beginning = next(found)
    assert begun == [], "nothing is written before it is its turn"
    rest = [*found]
    assert begun == ["first", "second", "third"] and rest[:2] == [b"[1", b",2]"]
    expected = {"text": text, "inner": [{"values": [1, 2], "text": text}, {"values": [], "text": "b"}], "number": 3}
    assert json.loads(beginning + b"".join(rest)) == expected


def test_a_field_may_be_written_already():
    assert text_line(Outer("a", written([{"b": 1.5}]))) == b'{"text":"a","inner":[{"b":1.5}],"number":null}'
