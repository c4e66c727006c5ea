"""Events survive the wire byte for byte, cut anywhere; the decoder follows WHATWG HTML 9.2."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.streaming.sse_format import DONE, HEARTBEAT, SseDecoder, SseEvent

JSON_TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n"))
FIELD = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n\0"), min_size=1)


def decode(stream: bytes, *cuts: int) -> list[SseEvent]:
    """Decode `stream`, fed in the pieces between `cuts`."""
    decoder = SseDecoder()
    edges = [0, *sorted(cuts), len(stream)]
    return [event for a, b in pairwise(edges) for event in decoder.feed(stream[a:b])]


def encode(data: str, name: str) -> bytes:
    """One event with all its fields."""
    return f"event: {name}\nid: {name}\ndata: {data}\n\n".encode()


def test_the_shapes_that_the_openai_client_relies_on():
    assert DONE == b"data: [DONE]\n\n"
    assert HEARTBEAT == b": \n"  # a comment line with no blank line behind it


@given(st.lists(st.tuples(JSON_TEXT, FIELD), max_size=4), st.data())
def test_round_trip_with_heartbeats_at_every_cut(events: list[tuple[str, str]], data: st.DataObject):
    stream = b"".join(HEARTBEAT + encode(text, name) for text, name in events)
    expected = [SseEvent(text, name, name) for text, name in events]
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    assert decode(stream, *cuts) == expected
    assert decode(stream, *range(len(stream))) == expected


@given(st.binary(), st.lists(st.integers(0, 60), max_size=5))
def test_any_bytes_decode_the_same_at_every_cut(stream: bytes, cuts: list[int]):
    whole = decode(stream)
    assert decode(stream, *[cut for cut in cuts if cut <= len(stream)]) == whole
    assert decode(stream, *range(len(stream))) == whole


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [SseEvent("YHOO\n+2\n10")]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n",
            [SseEvent("first event", id="1"), SseEvent("second event")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [SseEvent(""), SseEvent("\n")]),
        (b"data:test\n\ndata: test\n\n", [SseEvent("test"), SseEvent("test")]),
        (b"event: add\ndata: 73857293\n\ndata: 1\n\n", [SseEvent("73857293", "add"), SseEvent("1")]),
    ],
    ids=["three lines", "comment, ids, unfinished", "empty data", "one space", "event name is for one event"],
)
def test_examples_of_the_specification(stream: bytes, expected: list[SseEvent]):
    assert decode(stream) == expected


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_line_end(end: bytes):
    stream = b"data: a" + end + b"data: b" + end + end + b"data: c" + end + end
    assert decode(stream, *range(len(stream))) == [SseEvent("a\nb"), SseEvent("c")]


def test_a_byte_order_mark_is_dropped_at_the_start_only():
    bom = b"\xef\xbb\xbf"
    assert decode(bom + b"data: a\n\n" + bom + b"data: b\n\n") == [SseEvent("a")]


def test_an_id_with_nul_is_ignored_and_unknown_fields_are_too():
    assert decode(b"id: 1\nid: 2\0\nnonsense: 3\ndata: a\n\n") == [SseEvent("a", id="1")]


def test_an_event_without_data_is_not_dispatched():
    assert decode(b"event: x\nid: 4\n\ndata: a\n\n") == [SseEvent("a", id="4")]


def test_retry_takes_digits_only():
    decoder = SseDecoder()
    decoder.feed(b"retry: 3000\nretry: 3e3\nretry: \xd9\xa1\n")
    assert decoder.retry_ms == 3000


def test_bad_utf8_is_replaced():
    assert decode(b"data: a\xff\n\n") == [SseEvent("a\ufffd")]
