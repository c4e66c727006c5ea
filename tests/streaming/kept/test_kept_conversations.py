"""Kept streams that go on from one another: what is before a kept one stays, however long the conversation is."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from app.streaming.kept.kept_streams import KeptStreams
from app.streaming.kept.live_stream import TTL_S
from tests.cases import examples
from tests.streaming.kept.live_engine import finished
from tests.streaming.kept.live_kept import ROOM, Kept

ACTS = ("begin", "end", "touch", "forget", "expire")


def conversation(kept: Kept, count: int, name: str = "r", tenant: str | None = None) -> list[str]:
    """The ids of streams that have ended, each of which goes on from the one before it."""
    ids = [f"{name}{number}" for number in range(count)]
    for previous, stream_id in zip([None, *ids], ids, strict=False):
        assert kept.ended(stream_id, tenant, previous) is not None
    return ids


def test_going_on_from_a_conversation_is_one_step_however_long_it_is():
    """Else a turn of a long one would keep the loop for milliseconds."""
    steps: list[int] = []
    for count in (1, 10, 500):
        kept = Kept(2**24)
        *_, last = conversation(kept, count)
        with (
            patch.object(kept.kept, "settle", side_effect=kept.kept.settle) as settled,
            patch.object(kept.kept, "_drop_idle", side_effect=kept.kept._drop_idle) as dropped,
            patch.object(kept.kept, "_call_later", side_effect=kept.timers) as timers,
        ):
            kept.ended("next", None, last)
            kept.kept.touch(kept.kept.find(last, None))
        steps.append(settled.call_count + dropped.call_count + timers.call_count)
    assert len(set(steps)) == 1


def test_what_is_before_a_kept_one_stays_though_its_own_time_is_over():
    kept = Kept()
    first, _, last = conversation(kept, 3)
    *before, end = kept.timers.due
    for call in before:
        call.fire()
    assert kept.timers.due == [end] and all(map(kept.has, (first, last)))
    kept.kept.touch(kept.kept.find(first, None))
    assert [call.seconds for call in kept.timers.due] == [TTL_S] * 2
    kept.timers.fire()
    while kept.timers.due:  # each goes by a call of its own
        assert [call.seconds for call in kept.timers.due] == [0]
        kept.timers.fire()
    assert (len(kept.kept), kept.kept.num_bytes) == (0, 0)


def test_a_branch_that_ends_takes_nothing_from_the_others():
    kept = Kept()
    first, second = conversation(kept, 2)
    kept.ended("other", None, first)
    kept.kept.forget(kept.kept.find(second, None))
    assert kept.has(first) and kept.has("other")
    kept.kept.forget(kept.kept.find("other", None))
    assert [*kept.kept._idle] == [first]


def test_a_short_memory_takes_a_conversation_from_its_end():
    """What is before it can be gone on from; the rest of one that has lost its beginning is of no use."""
    kept = Kept(5 * ROOM)
    old, new = conversation(kept, 3, "old"), conversation(kept, 2, "new")
    for number in range(3):
        kept.ended(f"r{number}")
        assert [kept.has(each) for each in old] == [each < 2 - number for each in range(3)]
        assert all(map(kept.has, new))


def test_a_conversation_goes_on_before_others_are_kept():
    kept = Kept(3 * ROOM)
    first, second = conversation(kept, 2)
    kept.ended("other")
    kept.ended("next", None, second)
    assert [kept.has(each) for each in (first, second, "other", "next")] == [True, True, False, True]
    assert kept.ended("more", None, "next") is None, "its own responses make no room for it"
    assert [*kept.kept._idle] == ["next"]


def test_a_stream_of_another_key_is_not_gone_on_from():
    kept = Kept()
    kept.ended("r", "a")
    kept.ended("next", "b", "r")
    kept.kept.forget(kept.kept.find("r", "a"))
    assert (len(kept.kept), kept.kept._num_next.total()) == (1, 0)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 30), st.integers(0, 30)), max_size=60))
def test_whoever_is_kept_has_all_before_it_but_what_was_deleted(acts):
    kept = Kept(8 * ROOM)
    before: dict[str, str | None] = {}
    readers, deleted = {}, set[str]()
    for number, (act, which, who) in enumerate(acts):
        ids = [stream.id for stream in kept.kept._streams.values()]
        chosen = ids[which % len(ids)] if ids else None
        if act == "begin":
            ended = [stream.id for stream in kept.kept._streams.values() if stream.is_over]
            previous = ended[who % len(ended)] if ended and who % 4 else None
            if found := kept.start(f"r{number}", None, previous):
                before[f"r{number}"], readers[f"r{number}"] = previous, found[1]
        elif act == "expire" and kept.timers.due:
            kept.timers.due[which % len(kept.timers.due)].fire()
        elif chosen is not None and act == "end" and chosen in readers:
            kept.engine.put(chosen, finished(chosen))
            readers.pop(chosen).close()
        elif chosen is not None and act == "touch":
            kept.kept.touch(kept.kept.find(chosen, None))
        elif chosen is not None and act == "forget":
            deleted.add(chosen)
            kept.kept.forget(kept.kept.find(chosen, None))
        check(kept.kept, before, deleted)
    for reader in readers.values():
        reader.close()
    for _ in acts:
        kept.timers.fire()
    assert (len(kept.kept), kept.kept.num_bytes, kept.timers.due) == (0, 0, [])
    assert not kept.kept._previous and not kept.kept._num_next and not kept.kept._idle


def check(kept: KeptStreams, before: dict[str, str | None], deleted: set[str]) -> None:
    """Assert that what is before a kept stream is kept, unless it was deleted, and that only the others may go."""
    gone_on_from = set[str]()
    for stream in kept._streams.values():
        previous = before[stream.id]
        if previous is not None and previous not in deleted:
            assert (None, previous) in kept._streams
            gone_on_from.add(previous)
    may_go = {each.id for each in kept._streams.values() if each.is_over and not each.readers} - gone_on_from
    assert set(kept._idle) == may_go
