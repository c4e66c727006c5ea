"""Decoded data is the same for any split of the bytes; the decoder follows WHATWG HTML 9.2."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.streaming.sse_format import DONE, HEARTBEAT, SseDecoder

JSON_TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n"))
NAME = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n\0"), min_size=1)


def decode(stream: bytes, *cuts: int) -> list[str]:
    """Decode `stream`, fed in the pieces between `cuts`."""
    decoder = SseDecoder()
    edges = [0, *sorted(cuts), len(stream)]
    return [data for a, b in pairwise(edges) for data in decoder.feed(stream[a:b])]


def encode(data: str, name: str) -> bytes:
    """One event with all its fields."""
    return f"event: {name}\nid: {name}\ndata: {data}\n\n".encode()


def test_done_and_heartbeat_have_the_bytes_that_the_openai_client_expects():
    assert DONE == b"data: [DONE]\n\n"
    assert HEARTBEAT == b": \n"  # a comment line without a blank line after it


@given(st.lists(st.tuples(JSON_TEXT, NAME), max_size=4), st.data())
def test_round_trip_with_heartbeats_at_every_split(events: list[tuple[str, str]], data: st.DataObject):
    stream = b"".join(HEARTBEAT + encode(text, name) for text, name in events)
    expected = [text for text, _ in events]
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    assert decode(stream, *cuts) == expected
    assert decode(stream, *range(len(stream))) == expected


@given(st.binary(), st.lists(st.integers(0, 60), max_size=5))
def test_any_bytes_decode_the_same_at_every_split(stream: bytes, cuts: list[int]):
    expected = decode(stream)
    assert decode(stream, *[cut for cut in cuts if cut <= len(stream)]) == expected
    assert decode(stream, *range(len(stream))) == expected


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", ["YHOO\n+2\n10"]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n",
            ["first event", "second event"],
        ),
        (b"data\n\ndata\ndata\n\ndata:", ["", "\n"]),
        (b"data:test\n\ndata: test\n\n", ["test", "test"]),
        (b"event: add\ndata: 73857293\n\ndata: 1\n\n", ["73857293", "1"]),
    ],
    ids=["three lines", "comment, ids, unfinished", "empty data", "one space", "event name"],
)
def test_examples_of_the_specification_are_decoded(stream: bytes, expected: list[str]):
    assert decode(stream) == expected


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_line_end_is_accepted(end: bytes):
    stream = b"data: a" + end + b"data: b" + end + end + b"data: c" + end + end
    assert decode(stream, *range(len(stream))) == ["a\nb", "c"]


def test_a_byte_order_mark_is_dropped_at_the_start_only():
    bom = b"\xef\xbb\xbf"
    assert decode(bom + b"data: a\n\n" + bom + b"data: b\n\n") == ["a"]


def test_other_fields_are_ignored():
    assert decode(b"id: 1\nretry: 3000\nnonsense: 3\ndata: a\n\n") == ["a"]


def test_an_event_without_data_is_not_dispatched():
    assert decode(b"event: x\nid: 4\n\ndata: a\n\n") == ["a"]


def test_bad_utf8_is_replaced():
    assert decode(b"data: a\xff\n\n") == ["a\ufffd"]
