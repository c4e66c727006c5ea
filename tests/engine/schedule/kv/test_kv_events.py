"""KV events: ids, the bounded ring, and a snapshot for readers that are behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.schedule.kv.kv_events import AllCleared, BlockRemoved, BlockStored, KVEvents

TOKEN_BYTES = b"\x01\0\0\0\xff\xff\xff\xff"


def stored(events, name, parent=b""):
    events.block_stored(name, parent, TOKEN_BYTES)


def apply(snapshot, new_events):
    """Apply `new_events` to a reader's `snapshot` (hash: parent hash)."""
    for event in new_events:
        if isinstance(event, BlockStored):
            snapshot[event.block_hash] = event.parent_hash
        elif isinstance(event, BlockRemoved):
            del snapshot[event.block_hash]
        else:
            snapshot.clear()
    return snapshot


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


def test_a_reader_at_the_end_of_the_ring_misses_no_event():
    events = KVEvents(capacity=2)
    for name in (b"a", b"b", b"c"):
        stored(events, name)
    assert [event.event_id for event in events.since(1)] == [2, 3]


def test_a_reader_behind_the_ring_gets_a_snapshot_with_the_newest_id():
    events = KVEvents(capacity=2)
    for name in (b"a", b"b", b"c"):
        stored(events, name)
    events.block_removed(b"b")
    snapshot = (AllCleared(4), BlockStored(4, b"a", b"", TOKEN_BYTES), BlockStored(4, b"c", b"", TOKEN_BYTES))
    assert events.since(0) == snapshot
    assert events.since(1) == snapshot
    assert events.since(4) == ()


@pytest.mark.parametrize("seen", [-1, 2, 1000])
def test_an_unknown_event_id_gets_a_snapshot(seen):
    events = KVEvents()
    stored(events, b"a")
    assert events.since(seen) == (AllCleared(1), BlockStored(1, b"a", b"", TOKEN_BYTES))


def test_a_block_that_is_not_stored_cannot_be_removed():
    events = KVEvents()
    with pytest.raises(KeyError):
        events.block_removed(b"a")
    assert events.last_event_id == 0


def test_a_ring_without_capacity_is_rejected():
    with pytest.raises(ValueError, match="capacity is 0"):
        KVEvents(capacity=0)


def test_events_are_immutable():
    with pytest.raises(AttributeError):
        AllCleared(1).event_id = 2


@given(st.lists(st.sampled_from([*b"abcd", "clear", "read"]), max_size=60), st.integers(1, 5))
def test_a_readers_snapshot_is_exact_after_each_read(changes, capacity):
    events, expected, snapshot, seen = KVEvents(capacity), {}, {}, 0
    for number, change in enumerate([*changes, "read"]):
        if change == "read":
            new_events = events.since(seen)
            assert list(new_events) == sorted(new_events, key=lambda event: event.event_id)
            seen = new_events[-1].event_id if new_events else seen
            assert apply(snapshot, new_events) == expected
        elif change == "clear":
            events.all_cleared()
            expected.clear()
        elif (name := bytes([change])) in expected:
            events.block_removed(name)
            del expected[name]
        else:
            stored(events, name, parent=b"%d" % number)
            expected[name] = b"%d" % number
    assert seen == events.last_event_id
    assert apply({}, events.since(-1)) == expected
