"""A reader of deltas gets each one as the engine has told it, and the owner of a stream ends it by leaving."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.errors import Draining
from app.contract.events import Finished, FinishReason, RequestFailed, TokenDelta
from app.streaming.kept.delta_reader import EVENT_BYTES, DeltaReader, PollingDeltaReader
from app.streaming.kept.live_stream import LiveStream, State
from tests.streaming.kept.live_engine import LiveEngine, delta, finished, live_stream, read_now


class DurableRecorder:
    """A recorder of a stream that outlives the process."""

    def is_durable(self, stream: LiveStream) -> bool:
        return True


def started() -> tuple[LiveEngine, LiveStream]:
    """A stream that runs."""
    engine = LiveEngine()
    stream = live_stream(engine)
    stream.start()
    return engine, stream


def read_all(reader: DeltaReader) -> list[TokenDelta]:
    """All deltas that there are for a reader."""
    found: list[TokenDelta] = []
    while events := [event for event in read_now(reader) if isinstance(event, TokenDelta)]:
        found += events
    return found


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=40), data=st.data())
def test_every_reader_gets_the_deltas_of_the_engine_whenever_it_comes(sizes, data):
    engine, stream = started()
    sent, readers = [], []
    for size in sizes:
        if data.draw(st.booleans()):
            readers.append((DeltaReader(stream), []))
            readers[-1][0].open()
        if len(readers) == 8:
            readers.pop(0)[0].close()
        sent.append(delta("r", 1 + sum(len(one.token_ids) for one in sent), "ab"[: size % 3], size=size))
        engine.put("r", sent[-1])
        if readers and data.draw(st.booleans()):
            reader, found = data.draw(st.sampled_from(readers))
            found += [event for event in read_now(reader) if isinstance(event, TokenDelta)]
    tail = delta("r", 1 + sum(len(one.token_ids) for one in sent), "\ufffd", size=0)
    engine.put("r", tail, finished("r"))
    for reader, found in [*readers, (DeltaReader(stream), [])]:
        assert [*found, *read_all(reader)] == [*sent, tail]
        reader.close()


async def test_a_delta_that_is_longer_than_a_piece_is_whole():
    engine, stream = started()
    long = delta("r", 1, "x" * 20_000, size=3)
    engine.put("r", long, delta("r", 4, "y"), finished("r"))
    assert await DeltaReader(stream).receive() == [long]


async def test_a_piece_has_no_more_events_than_are_written_in_a_millisecond():
    engine, stream = started()
    for number in range(1, 501):
        engine.put("r", delta("r", number, "a"))
    reader = DeltaReader(stream)
    reader.open()
    sizes = []
    while sum(sizes) < 500:
        sizes.append(len(await reader.receive()))
    assert max(sizes) <= 8192 // EVENT_BYTES
    reader.close()


def test_the_owner_of_a_stream_cancels_it_by_leaving_and_other_readers_do_not():
    engine, stream = started()
    other, owner = DeltaReader(stream), DeltaReader(stream, is_owner=True)
    for reader in (other, owner):
        reader.open()
    other.close()
    assert (stream.state, engine.aborted) == (State.RUNNING, [])
    owner.close()
    owner.close()
    assert (stream.state, engine.aborted) == (State.CANCELLED, ["r"])


def test_an_owner_that_leaves_behind_the_end_changes_nothing():
    engine, stream = started()
    owner = DeltaReader(stream, is_owner=True)
    owner.open()
    engine.put("r", delta("r", 1, "a"), finished("r"))
    owner.close()
    assert (stream.state, engine.aborted) == (State.FINISHED, [])


@pytest.mark.parametrize("is_durable", [False, True])
def test_what_goes_on_in_the_next_process_is_not_cancelled(is_durable):
    _, stream = started()
    if is_durable:
        stream.recorder = DurableRecorder()  # type: ignore[assignment]
    owner = DeltaReader(stream, is_owner=True)
    owner.open()
    stream.stop(Draining("The server ends.").info())
    owner.close()
    assert stream.state is (State.RUNNING if is_durable else State.FAILED)


def polled(reader: PollingDeltaReader) -> list[object]:
    """All events that there are for a reader."""
    found: list[object] = []
    while (event := reader.poll()) is not None:
        found.append(event)
    return found


def test_a_reader_that_polls_gets_the_same_deltas_and_ends_its_stream_by_leaving():
    engine, stream = started()
    reader, waiting = PollingDeltaReader(stream, on_ready=lambda: None), DeltaReader(stream)
    reader.open()
    sent = [delta("r", 1, "ab", size=2), delta("r", 3, "c"), delta("r", 4, "\ufffd", size=0)]
    engine.put("r", *sent)
    assert polled(reader) == sent == read_all(waiting)
    reader.close()
    reader.close()
    assert (stream.state, engine.aborted) == (State.CANCELLED, ["r"])
    _, stream = started()
    late = PollingDeltaReader(stream, on_ready=lambda: None)
    late.open()
    stream.stop(Draining("The server ends.").info())
    assert [type(event) for event in polled(late)] == [RequestFailed]


def test_a_cancel_by_another_is_an_error_for_who_polls():
    engine, stream = started()
    reader = PollingDeltaReader(stream, on_ready=lambda: None)
    reader.open()
    engine.put("r", delta("r", 1, "a"))
    stream.cancel()
    engine.put("r", finished("r", reason=FinishReason.CANCELLED))
    *deltas, end = polled(reader)
    assert [type(event) for event in deltas] == [TokenDelta] and isinstance(end, RequestFailed)
    assert reader.failure is not None and reader.failure.code == "stream_cancelled"
    assert not reader.has_more


def test_who_polls_what_goes_on_in_the_next_process_gets_no_end():
    _, stream = started()
    stream.recorder = DurableRecorder()  # type: ignore[assignment]
    reader = PollingDeltaReader(stream, on_ready=lambda: None)
    reader.open()
    stream.stop(Draining("The server ends.").info())
    assert (polled(reader), reader.is_stopped, reader.is_finished) == ([], True, False)
    reader.close()
    assert stream.state is State.RUNNING


def test_the_end_of_what_is_polled_is_that_of_the_engine():
    engine, stream = started()
    reader = PollingDeltaReader(stream, on_ready=lambda: None)
    reader.open()
    engine.put("r", delta("r", 1, "a"), finished("r"))
    *_, end = polled(reader)
    assert isinstance(end, Finished) and reader.is_finished and not reader.has_more
    reader.close()
    assert stream.state is State.FINISHED
