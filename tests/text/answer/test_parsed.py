"""What answers hold keeps the order in which it was written, and messages are made of it."""

import pytest

from app.text.answer.parsed import CallPiece, MergedEvents, Parsed, call_id
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Reasoning, Text

EVENTS = (
    Reasoning("Hm"),
    Reasoning("."),
    Text("See: "),
    CallBegin(0, "f"),
    Arguments(0, '{"a"'),
    Arguments(0, ": 1}"),
    CallEnd(0),
    Text("and"),
    Text(" "),
    CallBegin(1, "g"),
    CallEnd(1),
    Text("so"),
)
JOINED = [
    Reasoning("Hm."),
    Text("See: "),
    CallBegin(0, "f"),
    Arguments(0, '{"a": 1}'),
    CallEnd(0),
    Text("and "),
    CallBegin(1, "g"),
    CallEnd(1),
    Text("so"),
]


def kinds(events):
    """Events with their types: tuples of different types can be equal."""
    return [(type(event), *event) for event in events]


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_events_are_kept_in_order_and_those_that_follow_each_other_become_one(size):
    kept = MergedEvents()
    for start in range(0, len(EVENTS), size):
        kept.add(EVENTS[start : start + size])
    assert kinds(kept.take().events) == kinds(JOINED)
    assert kept.take() == Parsed()


def test_arguments_of_two_calls_are_kept_apart():
    kept = MergedEvents()
    kept.add([Arguments(0, "1"), Arguments(1, "2"), Text("3"), Reasoning("4")])
    assert kinds(kept.take().events) == [(Arguments, 0, "1"), (Arguments, 1, "2"), (Text, "3"), (Reasoning, "4")]


@pytest.mark.parametrize("events", [EVENTS, tuple(JOINED)])
def test_a_message_has_the_text_beside_the_calls(events):
    parsed = Parsed(events)
    assert (parsed.text, parsed.reasoning) == ("See: and so", "Hm.")
    assert parsed.calls == (CallPiece(0, True, "f", '{"a": 1}'), CallPiece(1, True, "g", ""))


def test_a_piece_that_goes_on_has_no_name():
    assert Parsed(EVENTS[5:10]).calls == (CallPiece(0, False, "", ": 1}"), CallPiece(1, True, "g", ""))
    assert Parsed(EVENTS[6:9]).calls == ()


def test_ids_depend_on_the_place_alone():
    assert call_id("a", 0, 1) == call_id("a", 0, 1)
    assert len({call_id("a", 0, 0), call_id("a", 0, 1), call_id("a", 1, 0), call_id("b", 0, 0)}) == 4
