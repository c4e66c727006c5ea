"""What is kept: for how long, how many, how much memory, and for whom."""

from collections.abc import Callable
from dataclasses import replace
from weakref import ref

import pytest

from app.contract.errors import EngineFailed, Overloaded, RateLimitExceeded, StreamNotFound
from app.runtime.gc_tuning import without_gc
from app.streaming.kept.kept_streams import FREED_BYTES, MAX_PER_ACCOUNT
from app.streaming.kept.live_stream import CHOICE_BYTES, MAX_READERS, TTL_S, LiveStream, State
from app.streaming.kept.polling_reader import PollingReader
from app.streaming.kept.waiting_reader import WaitingReader
from tests.fakes import make_request
from tests.streaming.kept.live_engine import LiveEngine, delta, failed, finished, live_stream, read_now
from tests.streaming.kept.live_kept import ROOM, Kept


def test_the_time_begins_when_the_last_reader_has_left_and_stops_when_one_comes():
    kept = Kept()
    stream, reader = kept.start("r")
    assert kept.timers.due == []
    reader.close()
    assert [call.seconds for call in kept.timers.due] == [TTL_S]
    again = WaitingReader(stream)
    again.open()
    assert kept.timers.due == []
    again.close()
    kept.timers.fire()
    assert (len(kept.kept), kept.kept.num_bytes, kept.timers.due) == (0, 0, [])


def test_a_touched_stream_is_kept_as_if_a_reader_had_just_left_it():
    kept = Kept(3 * ROOM)
    first, second = kept.ended("first"), kept.ended("second")
    [_, later] = kept.timers.due
    kept.kept.touch(first)
    assert [call.seconds for call in kept.timers.due] == [TTL_S, TTL_S] and kept.timers.due[0] is later
    kept.start("third")
    kept.start("fourth")
    assert (kept.has("first"), kept.has("second")) == (True, False), "the oldest one goes"
    kept.kept.touch(second)
    assert len(kept.timers.due) == 1, "what is not kept any longer has no time"


def test_what_is_read_has_no_time_that_a_touch_could_begin():
    kept = Kept()
    stream, _ = kept.start("r")
    kept.kept.touch(stream)
    assert kept.timers.due == []


def test_who_reads_a_stream_that_is_forgotten_may_read_on():
    kept = Kept()
    stream, reader = kept.start("r")
    kept.kept.forget(stream)
    kept.engine.put("r", delta("r", 1, "a"), finished("r"))
    assert len(read_now(reader)) == 2
    reader.close()
    assert (len(kept.kept), kept.kept.num_bytes, kept.timers.due) == (0, 0, [])


def test_at_its_end_a_running_stream_is_cancelled_and_an_ended_one_forgotten():
    kept = Kept()
    running, reader = kept.start("running")
    reader.close()
    ended = kept.ended("ended")
    kept.timers.fire()
    assert (running.state, ended.state) == (State.CANCELLED, State.FINISHED)
    assert kept.engine.aborted == ["running"]
    assert not kept.has("running")
    assert not kept.has("ended")


def test_unknown_and_foreign_streams_are_told_alike():
    kept = Kept()
    kept.ended("r", "one")
    assert kept.has("r", "one")
    with pytest.raises(StreamNotFound) as foreign:
        kept.kept.find("r", "other")
    with pytest.raises(StreamNotFound) as unknown:
        kept.kept.find("no such", "other")
    assert foreign.value.info() == unknown.value.info()


def test_the_metrics_show_what_is_kept_by_its_state():
    kept = Kept()
    kept.start("running")
    kept.ended("ended")
    cancelled, _ = kept.start("cancelled")
    cancelled.cancel()
    assert kept.kept.counts.kept == {"running": 1, "finished": 1, "cancelled": 1, "failed": 0}


def test_over_the_bound_the_oldest_ended_stream_goes_and_what_runs_stays():
    kept = Kept(3 * ROOM)
    running, _ = kept.start("running")
    kept.ended("older")
    kept.ended("newer")
    assert kept.ended("newest") is not None
    assert [kept.has(name) for name in ("running", "older", "newer", "newest")] == [True, False, True, True]
    kept.engine.put("running", delta("running", 1, "x" * 3 * ROOM))
    assert kept.kept.num_bytes > 3 * ROOM
    assert not kept.has("newer")
    assert not kept.has("newest")
    assert running.keeper is kept.kept


def test_what_was_read_goes_when_its_last_reader_leaves_if_there_is_too_much():
    kept = Kept(ROOM)
    _, reader = kept.start("r")
    kept.engine.put("r", delta("r", 1, "x" * ROOM), finished("r"))
    assert kept.kept.num_bytes > ROOM
    assert kept.has("r")
    reader.close()
    assert (len(kept.kept), kept.kept.num_bytes, kept.timers.due) == (0, 0, [])


def test_a_stream_whose_time_is_over_while_there_is_too_much_is_forgotten_once():
    kept = Kept(ROOM)
    _, reader = kept.start("r")
    reader.close()
    kept.engine.put("r", delta("r", 1, "x" * ROOM))
    kept.timers.fire()
    assert (len(kept.kept), kept.kept.num_bytes, kept.engine.aborted) == (0, 0, ["r"])


def test_a_stream_that_is_read_is_not_let_go():
    kept = Kept(ROOM)
    _, reader = kept.start("r")
    kept.engine.put("r", finished("r"))
    assert kept.ended("next") is None
    reader.close()
    assert kept.ended("next") is not None


def test_without_room_a_new_stream_is_not_kept():
    kept = Kept(2 * ROOM)
    kept.start("one")
    kept.start("two")
    assert kept.start("three") is None
    assert Kept(0).start("r") is None


def test_an_account_has_at_most_512_streams():
    kept = Kept(2**30)
    for number in range(MAX_PER_ACCOUNT):
        assert kept.start(f"r{number}", "a") is not None
    assert kept.start("more", "a") is None
    assert kept.start("other", "b") is not None


def test_the_heap_is_trimmed_for_each_few_megabytes_that_are_let_go():
    kept, freed = Kept(2**30), []
    kept.kept._on_freed = lambda: freed.append(kept.kept.num_bytes)
    for number in range(9):
        _, reader = kept.start(f"r{number}")
        kept.engine.put(f"r{number}", delta(f"r{number}", 1, "x" * (FREED_BYTES // 4)), finished(f"r{number}"))
        reader.close()
    kept.timers.fire()
    assert len(freed) == 2


def test_the_choices_of_a_stream_count():
    one, two = (live_stream(LiveEngine(), "r", n=n).num_bytes for n in (1, 2))
    assert two - one == CHOICE_BYTES


def test_an_ended_stream_holds_nothing_that_only_generating_needs():
    kept = Kept()
    request = make_request("r", stop=["stop"] * 16, logit_bias={1: 1.0}, stop_token_ids=[7])
    stream = LiveStream(kept.engine, [request], "r")
    stream.start()
    WaitingReader(stream).open()
    kept.engine.put("r", replace(finished("r"), params=request.params))
    (params,) = [one.params for one in stream.requests]
    assert [end.params for end in stream.ends.values()] == [None]
    assert (params.stop, params.logit_bias, params.stop_token_ids, params.structured_outputs) == (None,) * 4
    assert (params.n, len(stream.requests[0].prompt_token_ids)) == (1, 3)


def test_readers_that_come_after_the_first_one_are_counted_when_they_have_come():
    kept = Kept()
    stream, _ = kept.start("r")
    assert kept.kept.counts.resumed == {"http": 0, "websocket": 0}
    PollingReader(stream, on_ready=lambda: None).open()
    for _ in range(MAX_READERS - 2):
        WaitingReader(stream).open()
    with pytest.raises(RateLimitExceeded):
        WaitingReader(stream).open()
    assert kept.kept.counts.resumed == {"http": MAX_READERS - 2, "websocket": 1}


class Payload:
    """Something large that a stream has."""


def _finish(kept: Kept, stream: LiveStream) -> None:
    kept.engine.put("r", delta("r", 1, "text"), finished("r", 0), finished("r", 1))


def _fail(kept: Kept, stream: LiveStream) -> None:
    kept.engine.put("r", failed("r", EngineFailed("The engine has failed.")))


def _cancel(kept: Kept, stream: LiveStream) -> None:
    stream.cancel()
    kept.engine.put("r", finished("r", 0), finished("r", 1))


@pytest.mark.parametrize("end", [_finish, _fail, _cancel])
def test_what_is_forgotten_is_freed_without_a_collection(end: Callable[[Kept, LiveStream], None]):
    kept, payload = Kept(), Payload()
    found = ref(payload)
    stream = live_stream(kept.engine, n=2, answer=payload)
    del payload
    assert kept.kept.keep(stream)
    with without_gc():
        stream.start()
        end(kept, stream)
        kept.timers.fire()
        assert (len(kept.kept), kept.timers.due) == (0, [])
        del stream
        assert found() is None


def test_what_the_engine_does_not_take_is_freed_without_a_collection():
    kept, payload = Kept(), Payload()
    found = ref(payload)
    kept.engine.rejection = Overloaded("The queue is full.")
    stream = live_stream(kept.engine, answer=payload)
    del payload
    assert kept.kept.keep(stream)
    with without_gc():
        with pytest.raises(Overloaded):
            stream.start()
        kept.engine.rejection = None  # whose traceback has the stream
        del stream
        assert found() is None
