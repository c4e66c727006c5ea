"""KV events: numbers, the bounded ring, and a snapshot for readers that are behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.schedule.kv.kv_events import AllCleared, BlockRemoved, BlockStored, KVEvents

TOKEN_BYTES = b"\x01\0\0\0\xff\xff\xff\xff"


def stored(events, name, parent=b""):
    events.block_stored(name, parent, TOKEN_BYTES)


def apply(picture, answer):
    """What a reader with `picture` (hash: parent) has after `answer`."""
    for event in answer:
        if isinstance(event, BlockStored):
            picture[event.block_hash] = event.parent_hash
        elif isinstance(event, BlockRemoved):
            del picture[event.block_hash]
        else:
            picture.clear()
    return picture


def test_events_are_numbered_from_1_and_read_in_order():
    events = KVEvents()
    assert events.since(0) == ()
    stored(events, b"a")
    stored(events, b"b", b"a")
    events.block_removed(b"b")
    events.all_cleared()
    everything = (
        BlockStored(1, b"a", b"", TOKEN_BYTES),
        BlockStored(2, b"b", b"a", TOKEN_BYTES),
        BlockRemoved(3, b"b"),
        AllCleared(4),
    )
    assert [events.since(seen) for seen in range(5)] == [everything[seen:] for seen in range(5)]
    assert events.last_event_id == 4
    assert (everything[0].token_ids, everything[0].block_size) == ((1, -1), 2)


def test_a_reader_exactly_at_the_rings_end_misses_nothing():
    events = KVEvents(capacity=2)
    for name in (b"a", b"b", b"c"):
        stored(events, name)
    assert [event.event_id for event in events.since(1)] == [2, 3]


def test_a_reader_behind_the_ring_gets_the_whole_picture_with_the_newest_number():
    events = KVEvents(capacity=2)
    for name in (b"a", b"b", b"c"):
        stored(events, name)
    events.block_removed(b"b")
    picture = (AllCleared(4), BlockStored(4, b"a", b"", TOKEN_BYTES), BlockStored(4, b"c", b"", TOKEN_BYTES))
    assert events.since(0) == picture
    assert events.since(1) == picture
    assert events.since(4) == ()


@pytest.mark.parametrize("seen", [-1, 2, 1000])
def test_a_number_that_was_never_given_gets_the_whole_picture(seen):
    events = KVEvents()
    stored(events, b"a")
    assert events.since(seen) == (AllCleared(1), BlockStored(1, b"a", b"", TOKEN_BYTES))


def test_a_block_that_is_not_stored_cannot_be_removed():
    events = KVEvents()
    with pytest.raises(KeyError):
        events.block_removed(b"a")
    assert events.last_event_id == 0


def test_a_ring_without_room_is_refused():
    with pytest.raises(ValueError, match="capacity is 0"):
        KVEvents(capacity=0)


def test_events_do_not_change():
    with pytest.raises(AttributeError):
        AllCleared(1).event_id = 2


@given(st.lists(st.sampled_from([*b"abcd", "clear", "read"]), max_size=60), st.integers(1, 5))
def test_any_reader_has_the_exact_picture_after_each_answer(changes, capacity):
    events, truth, picture, seen = KVEvents(capacity), {}, {}, 0
    for number, change in enumerate([*changes, "read"]):
        if change == "read":
            answer = events.since(seen)
            assert list(answer) == sorted(answer, key=lambda event: event.event_id)
            seen = answer[-1].event_id if answer else seen
            assert apply(picture, answer) == truth
        elif change == "clear":
            events.all_cleared()
            truth.clear()
        elif (name := bytes([change])) in truth:
            events.block_removed(name)
            del truth[name]
        else:
            stored(events, name, parent=b"%d" % number)
            truth[name] = b"%d" % number
    assert seen == events.last_event_id
    assert apply({}, events.since(-1)) == truth
