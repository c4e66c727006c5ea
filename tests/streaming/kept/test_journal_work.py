"""What a commit writes: deltas one by one, and as a whole those streams that end or hold batches back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.contract.errors import EngineFailed
from app.contract.packed_logprobs import Logprobs, row_bytes
from app.journal.entries import Delta, Told
from app.journal.store import Changes
from app.streaming.kept.journal_work import JournalWork, Recorded
from app.streaming.kept.live_stream import LiveStream, State, StreamEnd
from tests.streaming.kept.live_engine import LiveEngine, delta, finished, live_stream
from tests.streaming.kept.recorded_deltas import deltas_of
from tests.streaming.kept.recorded_streams import head

FAILED = StreamEnd(State.FAILED, EngineFailed("It failed.").info())


def streams(count: int, n: int = 1) -> dict[int, LiveStream]:
    return {number: live_stream(LiveEngine(), f"r{number}", n=n) for number in range(1, count + 1)}


def test_tokens_alone_are_deltas_in_their_order():
    (one, other) = streams(2).values()
    logprobs = Logprobs(2, bytes(row_bytes(2)))
    last = delta("r1", 2, "c")._replace(logprobs=logprobs)
    work = JournalWork([(1, one, 0, delta("r1", 1, "a")), (2, other, 0, delta("r2", 1, "b")), (1, one, 0, last)])
    deltas = [(1, Delta(0, (1,), "a")), (2, Delta(0, (1,), "b")), (1, Delta(0, (2,), "c", 2, logprobs.rows))]
    assert work.changes({}) == Changes(deltas=deltas)


def test_a_stream_that_ends_is_written_as_a_whole_and_one_with_an_open_choice_is_not():
    one, other = streams(2, n=2).values()
    one.take(1, delta("r1", 1, "before", choice=1))
    work = JournalWork(
        [(1, one, 0, delta("r1", 1, "a")), (2, other, 0, delta("r2", 1, "b"))],
        [(1, one, (0, finished("r1"))), (2, other, (1, finished("r2", 1))), (1, one, (1, finished("r1", 1)))],
    )
    changes = work.changes({})
    assert changes.deltas == []
    assert [*changes.written] == [1] and [*changes.told] == [2]
    assert (changes.written[1].state, changes.told[2].state) == (State.FINISHED, State.RUNNING)
    assert [each.text for each in deltas_of(changes.written[1])] == ["before", "a"]
    assert [end.choice for end in changes.written[1].ends] == [0, 1]
    assert ([each.text for each in changes.told[2].deltas], [end.choice for end in changes.told[2].ends]) == (
        ["b"],
        [1],
    )


def test_the_first_end_of_a_stream_is_the_one_that_is_written():
    one, other = streams(2).values()
    work = JournalWork(endings=[(1, one, (0, finished("r1"))), (1, one, FAILED), (2, other, FAILED)])
    written = work.changes({}).written
    assert {number: (told.state, told.failure) for number, told in written.items()} == {
        1: (State.FINISHED, None),
        2: (State.FAILED, FAILED.error),
    }


def test_of_a_forgotten_stream_nothing_is_written():
    one, other = streams(2).values()
    work = JournalWork(
        [(1, one, 0, delta("r1", 1, "a")), (2, other, 0, delta("r2", 1, "b"))],
        [(1, one, (0, finished("r1")))],
        forgotten={1},
    )
    assert work.changes({}) == Changes(deltas=[(2, Delta(0, (1,), "b"))], forgotten={1})


def test_a_journal_that_is_written_anew_has_all_of_each_stream():
    (one,) = streams(1).values()
    one.take(0, delta("r1", 1, "a"))
    changes = JournalWork(begun={1: Recorded(one, head(one))}, attempts={1: 2}, is_whole=True).changes({})
    assert (changes.begun, changes.attempts) == ({1: head(one)}, {1: 2})
    assert [each.text for each in deltas_of(changes.written[1])] == ["a"]


def test_work_is_true_if_there_is_something_to_write():
    (one,) = streams(1).values()
    assert not JournalWork()
    assert JournalWork([(1, one, 0, delta("r1", 1, "a"))])
    assert JournalWork(endings=[(1, one, FAILED)])
    assert all((JournalWork(forgotten={1}), JournalWork(attempts={1: 1}), JournalWork(is_whole=True)))


@given(st.lists(st.integers(1, 4)), st.sets(st.integers(1, 4)), st.sets(st.integers(1, 4)), st.sets(st.integers(1, 4)))
def test_all_that_streams_tell_is_written_once(tokens: list[int], held: set[int], ended: set[int], forgotten: set[int]):
    by_number = streams(4)
    counts = dict.fromkeys(by_number, 1)
    for stream in by_number.values():
        stream.take(0, delta(stream.id, 1, "told"))
    work = JournalWork(forgotten=forgotten)
    for number in tokens:
        counts[number] += 1
        work.deltas.append((number, by_number[number], 0, delta(f"r{number}", counts[number], str(counts[number]))))
    work.endings += [(number, by_number[number], (0, finished(f"r{number}"))) for number in sorted(ended)]
    changes = work.changes({number: by_number[number] for number in held - forgotten})
    assert {*changes.written} == (held | ended) - forgotten
    assert not changes.told
    told = {number: Told() for number in by_number}
    for number, entry in changes.deltas:
        told[number].deltas.append(entry)
    for number, whole in changes.written.items():
        assert told[number] == Told(), "deltas of a stream that is written as a whole"
        told[number] = whole
    for number, count in counts.items():
        texts = [str(each) for each in range(2, count + 1)] * (number not in forgotten)
        assert [entry.text for entry in deltas_of(told[number])] == ["told"] * (number in changes.written) + texts
        assert told[number].state == (State.FINISHED if number in ended - forgotten else State.RUNNING)
